package spelling

import (
	"bytes"
	"fmt"
)

// UTF8 is a text that somebody wrote, without the byte order mark that Windows' editors and PowerShell put before it; UTF-16 is an error that says how it
// becomes UTF-8.
func UTF8(name string, text []byte) ([]byte, error) {
	if bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff")) {
		return nil, fmt.Errorf("%s is UTF-16, as Windows PowerShell's > writes files: it has to be UTF-8, as | Out-File -Encoding utf8 %s writes it there", name, name)
	}
	return bytes.TrimPrefix(text, []byte("\ufeff")), nil
}
