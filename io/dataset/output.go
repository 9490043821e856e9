package dataset

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// IsInput tells whether a file is there and is one of those that paths of data files, globs among them, name, by whatever name. Of a URL's files it knows nothing.
func IsInput(file string, paths ...string) bool {
	out, err := os.Stat(file)
	if err != nil {
		return false // a new file
	}
	for _, f := range LocalFiles(paths...) {
		if in, err := os.Stat(f); err == nil && os.SameFile(in, out) {
			return true
		}
	}
	return false
}

// LocalFiles are the files that paths of data files, globs among them, name on this machine, whether they are there or not. Of a URL's files it knows nothing.
func LocalFiles(paths ...string) (files []string) {
	for _, p := range paths {
		switch {
		case Remote(p):
		case IsGlob(p):
			found, _ := filepath.Glob(p) // what is no glob, opening it says
			files = append(files, found...)
		default:
			files = append(files, p)
		}
	}
	return files
}

// CheckApart refuses an output that is one of the files that paths name. The error begins with the output's name.
func CheckApart(output string, paths ...string) error {
	if IsInput(output, paths...) {
		return fmt.Errorf("%s is a file that is read: it would be replaced; give another", output)
	}
	return nil
}

// CheckBeside refuses an output for a table of files and columns beside them (Table.NewWriter): one that [CheckOutput] refuses, and one of the files that
// are read, but for the one parquet file that may be both, whoever wrote it. The error begins with the output's name.
func CheckBeside(output string, paths ...string) error {
	if len(paths) == 1 && isParquet(paths[0]) && !IsGlob(paths[0]) && IsInput(output, paths...) {
		return checkName(output)
	}
	if err := CheckApart(output, paths...); err != nil {
		return err
	}
	return CheckOutput(output)
}

// CheckOutput refuses a parquet file of another name, by which nothing reads it as that, a folder, and a file that is there and was not written by
// [NewParquetWriter] or the like: the same command may be given twice, and no other file is lost by a mistaken name. The error begins with the output's name.
func CheckOutput(output string) error {
	if err := checkName(output); err != nil {
		return err
	}
	info, err := os.Stat(output)
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 { // opening it says what is wrong with it
		return nil
	}
	if f, err := openParquet(output); err != nil || !strings.HasPrefix(f.meta.CreatedBy, createdBy) {
		return fmt.Errorf("%s is a file already, and not written by contraflow: give another name, or remove it", output)
	}
	return nil
}

func checkName(output string) error {
	if err := CheckNoFolder(output, "out.parquet"); err != nil {
		return err
	}
	if !isParquet(output) {
		return fmt.Errorf("%s: what is written is parquet, and nothing reads it as that by this name: give %s.parquet", output, strings.TrimSuffix(output, filepath.Ext(output)))
	}
	return nil
}

// CheckNoFolder refuses an output that is a folder; name is of a file in it. The error begins with the output's name.
func CheckNoFolder(output, name string) error {
	if info, err := os.Stat(output); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a folder: give a file in it, such as %s", output, filepath.Join(output, name))
	}
	return nil
}
