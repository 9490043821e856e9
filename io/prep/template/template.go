// Package template has the configuration to begin with for package prep, and nothing else: the program that trains prints it, and has no need of what
// prepares data.
package template

import _ "embed"

// Prep is a commented prep.Config in YAML: every key there is, with its default where it has one.
//
//go:embed prep.yaml
var Prep string
