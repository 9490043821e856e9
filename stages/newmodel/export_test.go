package newmodel

// SetDistillPart has Distill embed so many tokens between reports, until what it returns is called.
func SetDistillPart(n int) (undo func()) {
	was := distillPart
	distillPart = n
	return func() { distillPart = was }
}

// Ordinary is ordinary.
var Ordinary = ordinary
