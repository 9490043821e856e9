package newmodel_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"contraflow/gpustage/cpu"
	"contraflow/io/hfmodel"
	"contraflow/stages/newmodel"
)

// An encoder to begin training with, and static embeddings of what it knows of each token: here nothing yet.
func Example() {
	dir, err := os.MkdirTemp("", "newmodel")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ctx, encoder, static := context.Background(), filepath.Join(dir, "encoder"), filepath.Join(dir, "static")
	texts := newmodel.Texts([]string{"a stone in the river", "rivers and stones"})
	if err := newmodel.Create(ctx, encoder, newmodel.Spec{Hidden: 32, Layers: 2, Vocab: 40, Lowercase: true}, texts); err != nil {
		fmt.Println(err)
		return
	}
	d, err := cpu.New()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	if err := newmodel.Distill(ctx, static, newmodel.Spec{Hidden: 16}, encoder, "encoder", d, nil); err != nil {
		fmt.Println(err)
		return
	}
	for _, folder := range []string{encoder, static} {
		f, err := hfmodel.Open(folder)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(filepath.Base(folder), f.ModelType, f.Static())
		f.Close()
	}
	// Output:
	// encoder bert false
	// static static_embedding true
}
