package hfmodel

import (
	"fmt"
	"path/filepath"
	"strings"
)

// checkPath refuses a relative path, with slashes, that a stranger chose and that could lead out of its folder on any
// system: upwards, absolute, with a drive or backslash, with control characters, or with a name that Windows gives to
// a device. The error begins with the quoted path.
func checkPath(p string) error {
	bad := func(why string) error { return fmt.Errorf("%q %s", p, why) }
	switch {
	case p == "":
		return bad("is empty")
	case len(p) > 1024:
		return fmt.Errorf("%q... is %d bytes long", p[:60], len(p))
	case strings.HasPrefix(p, "/"):
		return bad("is absolute")
	case strings.ContainsRune(p, '\\'):
		return bad("has a backslash")
	case strings.ContainsRune(p, ':'):
		return bad("has a colon, which names a drive or a stream on Windows")
	case strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r == 0x7f || r == 0xfffd }):
		return bad("has control or invalid characters")
	}
	for part := range strings.SplitSeq(p, "/") {
		switch {
		case part == "..":
			return bad("leads out of its folder")
		case part == "" || part == ".":
			return bad("has an empty part")
		case strings.HasSuffix(part, ".") || strings.HasSuffix(part, " "):
			return bad("has a part that ends with a dot or a space, which Windows drops")
		}
	}
	if !filepath.IsLocal(filepath.FromSlash(p)) { // Windows' device names
		return bad("is no plain path on this system")
	}
	return nil
}
