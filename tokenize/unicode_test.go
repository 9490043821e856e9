package tokenize

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
)

// The tables are as gen_tables.py wrote them, all the way to the checksum in the last line.
func TestTablesAreTheScripts(t *testing.T) {
	body, sum, ok := strings.Cut(unicodeTables, "# sha256 ")
	if want := fmt.Sprintf("%x\n", sha256.Sum256([]byte(body))); !ok || sum != want {
		t.Errorf("unicode_tables.txt ends in the checksum %q, has %q: run gen_tables.py", sum, want)
	}
	if _, err := parseUnicodeTables(unicodeTables); err != nil {
		t.Error(err)
	}
}
