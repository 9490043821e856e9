package spelling_test

import (
	"fmt"

	"contraflow/io/spelling"
)

func ExampleUTF8() {
	text, err := spelling.UTF8("a.yaml", []byte("\ufeffa: b"))
	fmt.Printf("%q %v\n", text, err)
	_, err = spelling.UTF8("a.yaml", []byte("\xff\xfea\x00"))
	fmt.Println(err)
	// Output:
	// "a: b" <nil>
	// a.yaml is UTF-16, as Windows PowerShell's > writes files: it has to be UTF-8, as | Out-File -Encoding utf8 a.yaml writes it there
}
