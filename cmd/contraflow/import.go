package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"contraflow/io/spelling"
	"contraflow/stages/recipe"
	"contraflow/stages/recipe/imports"
)

func newImport() *cobra.Command {
	var devices int
	var out string
	var python bool
	cmd := &cobra.Command{
		Use:   "import FILE | import -- COMMAND... | import --python",
		Short: "Make a recipe of a sentence-transformers trainer's arguments or a FlagEmbedding command",
		Long: `import turns another program's settings into a recipe. FILE is a JSON or YAML mapping of a sentence-transformers trainer's arguments (with model,
train_dataset, columns and loss beside them), or a shell script with a FlagEmbedding command line, in which variables that the script itself
sets are expanded, and eval $cmd is followed; - is standard input. Or put the command line after --.

What the settings don't say has the other program's default. What was assumed, what has no counterpart and which names neither program knows
stands in comments above the recipe, and on standard error.

Of a sentence-transformers script FILE is made so: ` + imports.FromPython,
		Example: `  contraflow import --python > trainer_settings.py
  contraflow import moved/args.json > recipe.yaml
  contraflow import finetune.sh --out recipe.yaml
  contraflow import -- torchrun --nproc_per_node 8 -m FlagEmbedding.finetune.embedder.encoder_only.base --model_name_or_path BAAI/bge-m3 ...`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := atLeastOne(cmd, "devices"); err != nil {
				return err
			}
			if python {
				if len(args) > 0 || out != "" {
					return usageError{errors.New("--python prints a module, and reads and writes no file: import --python > trainer_settings.py")}
				}
				_, err := fmt.Fprint(cmd.OutOrStdout(), imports.TrainerSettings)
				return err
			}
			from, settings, n, err := readSettings(cmd, args)
			if err != nil && (devices == 0 || !errors.Is(err, imports.ErrProcesses)) {
				return err
			}
			if devices > 0 {
				n = devices
			}
			res, err := imports.Convert(from, settings, n)
			if err != nil {
				return err
			}
			for _, k := range []struct {
				kind string
				list []string
			}{{"assumed", res.Assumed}, {"without counterpart", res.Without}, {"unknown, left out", res.Unknown}} {
				for _, s := range k.list {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", k.kind, s)
				}
			}
			name := "the recipe"
			if out != "" {
				name = out
			}
			_, wrong := recipe.Parse(name, []byte(res.Recipe), nil)
			if wrong != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "to be mended before it can be trained with: %v\n", wrong)
			}
			if out == "" {
				_, err := fmt.Fprint(cmd.OutOrStdout(), res.Recipe)
				return err
			}
			if _, err := os.Lstat(out); err == nil {
				return &fs.PathError{Op: "write", Path: out, Err: fs.ErrExist}
			}
			if err := writeText(out, res.Recipe); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s; next: %scontraflow train -c %s\n", out, first(res.Open, name, wrong), shellWord(out))
			return err
		},
	}
	cmd.Flags().IntVar(&devices, "devices", 0, "how many processes trained together, over all machines (default: what torchrun, deepspeed, accelerate, mpirun or srun is told, or trainer_settings.py has seen, or 1)")
	cmd.Flags().StringVar(&out, "out", "", "the `FILE` to write, which must not be there (default: standard output)")
	cmd.Flags().BoolVar(&python, "python", false, "print trainer_settings.py, a module for a sentence-transformers script, which writes what is imported")
	notEmpty(cmd, "out")
	return cmd
}

// plainWord is what a shell takes as it is.
var plainWord = regexp.MustCompile(`^[\pL\pN_./:@%+,=~-]+$`)

// shellWord writes a word as a shell reads it.
func shellWord(s string) string { return wordFor(runtime.GOOS, s) }

func wordFor(system, s string) string {
	windows := system == "windows"
	plain := s
	if windows {
		plain = strings.ReplaceAll(s, `\`, "/")
	}
	switch {
	case plainWord.MatchString(plain) && !strings.HasPrefix(s, "~"):
		return s
	case windows: // to its cmd.exe ' is a letter
		return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"`
	}
	return quoted(s)
}

// quoted is a word as a POSIX shell reads it.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// first says what comes before training: what is to be put into the recipe, and which keys its check finds wrong, in errors that begin with name.
func first(open []string, name string, wrong error) string {
	var steps, keys []string
	if len(open) > 0 {
		steps = append(steps, "put "+strings.Join(open, ", "))
	}
	if wrong != nil {
		wrongKey := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + `:\d+: ([\w.\[\]]+): (is "LOSS")?`)
		for _, m := range wrongKey.FindAllStringSubmatch(wrong.Error(), -1) {
			if m[2] == "" && !slices.Contains(keys, m[1]) { // LOSS is open
				keys = append(keys, m[1])
			}
		}
		if keys == nil && len(open) == 0 {
			keys = []string{"what is said of it"}
		}
	}
	if keys != nil {
		steps = append(steps, "mend "+strings.Join(keys, ", "))
	}
	if steps == nil {
		return ""
	}
	return strings.Join(steps, "; ") + "; then "
}

func readSettings(cmd *cobra.Command, args []string) (from imports.Source, s imports.Settings, devices int, err error) {
	if cmd.ArgsLenAtDash() == 0 && len(args) > 0 {
		words := make([]string, len(args)) // the shell has split it already
		for i, a := range args {
			words[i] = quoted(a)
		}
		s, devices, err = imports.ReadCommand(strings.Join(words, " "))
		return imports.FlagEmbedding, s, devices, err
	}
	if len(args) != 1 {
		return 0, nil, 0, missing(errors.New("want one FILE with a trainer's arguments, or a command line after --"))
	}
	var text []byte
	if args[0] == "-" {
		text, err = io.ReadAll(cmd.InOrStdin())
	} else {
		text, err = os.ReadFile(args[0])
	}
	if err == nil {
		text, err = spelling.UTF8(args[0], text)
	}
	if err != nil {
		return 0, nil, 0, err
	}
	if ext := filepath.Ext(args[0]); !imports.IsPython(args[0], text) && (ext == ".sh" || ext == ".txt" || strings.Contains(string(text), "--model_name_or_path")) {
		if s, devices, err = imports.ReadCommand(string(text)); err != nil {
			err = fmt.Errorf("%s: %w", args[0], err)
		}
		return imports.FlagEmbedding, s, devices, err
	}
	s, err = imports.ReadMapping(args[0], text)
	if _, flag := s["train_group_size"]; flag {
		from = imports.FlagEmbedding
	}
	return from, s, 0, err
}
