// Init is the first and only process of the virtual machine that run boots: it runs the commands of /commands, one a line,
// says how many failed, and switches the machine off.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

func main() {
	defer off()
	for _, fs := range [][2]string{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}} {
		if err := os.MkdirAll(fs[1], 0o755); err != nil {
			fmt.Println(err)
		}
		if err := syscall.Mount(fs[0], fs[1], fs[0], 0, ""); err != nil {
			fmt.Println("mounting", fs[1], err)
		}
	}
	commands, err := os.ReadFile("/commands")
	if err != nil {
		fmt.Println(err)
		return
	}
	failed := 0
	for line := range strings.Lines(string(commands)) {
		fmt.Print("init: ", line)
		words := strings.Fields(line)
		c := exec.Command("/"+words[0], words[1:]...)
		c.Env = []string{"CONTRAFLOW_CPU=avx512bf16"}
		c.Stdout, c.Stderr = os.Stdout, os.Stderr
		if err := c.Run(); err != nil {
			failed++
			fmt.Println(err)
		}
	}
	fmt.Println("init: failed:", failed)
}

// off ends Bochs, too.
func off() {
	time.Sleep(time.Second / 5) // what is printed goes through the serial port first
	syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
}
