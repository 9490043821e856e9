package imports

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Options of mpirun and srun that say how many processes there are, by what they count: all of them, those on each machine, or machines, of which each has
// one if nothing else is said.
var (
	ofMPI   = map[string]string{"-n": "all", "-np": "all", "--np": "all", "--n": "all", "-c": "all"}
	ofSlurm = map[string]string{"-n": "all", "--ntasks": "all", "--ntasks-per-node": "each", "-N": "machines", "--nodes": "machines"}
)

// sbatch is a line of a Slurm script's head, whose options are those of an srun in it that has none.
var sbatch = regexp.MustCompile(`(?m)^#SBATCH[ \t]+([^\n#]*)`)

// launchedBy is how many processes mpirun or srun starts, of a command's words before the program: 0 if neither is there. One that torchrun and its like stand
// behind starts those, and they the processes.
func launchedBy(words []string, script string) (n int, err error) {
	for i, w := range words {
		w = path.Base(w)
		switch {
		case w == "torchrun" || w == "deepspeed" || w == "accelerate" || strings.HasPrefix(w, "torch.distributed."):
			return 0, nil
		case n != 0 || err != nil:
		case w == "mpirun" || w == "mpiexec" || w == "orterun":
			n, err = count(w, words[i+1:], ofMPI, nil)
		case w == "srun":
			var head []string
			for _, m := range sbatch.FindAllStringSubmatch(script, -1) {
				head = append(head, strings.Fields(m[1])...)
			}
			n, err = count(w, words[i+1:], ofSlurm, head)
		}
	}
	return n, err
}

// count reads a launcher's options up to python, and those of a script's head that it has not.
func count(launcher string, words []string, options map[string]string, head []string) (int, error) {
	if i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(path.Base(w), "python") }); i >= 0 {
		words = words[:i]
	}
	own, err := counted(launcher, words, options)
	if err != nil {
		return 0, err
	}
	counts, err := counted(launcher, head, options)
	if err != nil {
		return 0, err
	}
	if own["all"]+own["each"] > 0 {
		delete(counts, "all")
		delete(counts, "each")
	}
	maps.Copy(counts, own)
	switch {
	case counts["all"] > 0:
		return counts["all"], nil
	case counts["each"] > 0:
		return counts["each"] * max(1, counts["machines"]), nil
	case counts["machines"] > 0:
		return counts["machines"], nil
	}
	return 0, fmt.Errorf("%s: %w: what it starts depends on the machine, and --devices N says it here", launcher, ErrProcesses)
}

// counted reads options that count processes.
func counted(launcher string, words []string, options map[string]string) (map[string]int, error) {
	counts := map[string]int{}
	for i, w := range words {
		name, value, joined := strings.Cut(w, "=")
		if !joined && len(w) > 2 && w[1] != '-' && options[w[:2]] != "" && strings.Trim(w[2:], "0123456789") == "" { // -n4
			name, value, joined = w[:2], w[2:], true
		}
		of := options[name]
		if of == "" {
			continue
		}
		if !joined && i+1 < len(words) {
			value = words[i+1]
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%s: %s %s: %w; --devices N says it here", launcher, name, value, ErrProcesses)
		}
		counts[of] = n
	}
	return counts, nil
}
