package prep

import _ "embed"

// Template is a commented configuration to begin with: every key there is, with its default where it has one.
//
//go:embed template.yaml
var Template string
