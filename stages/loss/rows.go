package loss

import "fmt"

// What rows a loss takes. One that is made of others takes those that all of them take: CheckLabel, CheckScore and CheckNegatives ask each that has such a method.

// CheckLabel finds a label that a loss does not take: that of its method CheckLabel, if it has one.
func CheckLabel(l Loss, y float64) error {
	if c, ok := l.(interface{ CheckLabel(float64) error }); ok {
		return c.CheckLabel(y)
	}
	return nil
}

// CheckScore is likewise of a document's score.
func CheckScore(l Loss, y float64) error {
	if c, ok := l.(interface{ CheckScore(float64) error }); ok {
		return c.CheckScore(y)
	}
	return nil
}

// CheckNegatives refuses a row with a number of negatives that a loss does not take, likewise.
func CheckNegatives(l Loss, n int) error {
	if c, ok := l.(interface{ CheckNegatives(int) error }); ok {
		return c.CheckNegatives(n)
	}
	return nil
}

// CheckLabel finds a label that a term does not take.
func (l sum) CheckLabel(y float64) error {
	return l.each(func(l Loss) error { return CheckLabel(l, y) })
}

// CheckScore finds a score that a term does not take.
func (l sum) CheckScore(y float64) error {
	return l.each(func(l Loss) error { return CheckScore(l, y) })
}

// CheckNegatives refuses a row with a number of negatives that a term does not take.
func (l sum) CheckNegatives(n int) error {
	return l.each(func(l Loss) error { return CheckNegatives(l, n) })
}

// each says of which term an error is.
func (l sum) each(check func(Loss) error) error {
	for i, t := range l {
		if err := check(t.Loss); err != nil {
			return fmt.Errorf("term %d, %T: %w", i, t.Loss, err)
		}
	}
	return nil
}

// CheckLabel is that of the loss in it, as CheckScore and CheckNegatives are.
func (l matryoshka) CheckLabel(y float64) error { return CheckLabel(l.l, y) }

func (l matryoshka) CheckScore(y float64) error { return CheckScore(l.l, y) }

func (l matryoshka) CheckNegatives(n int) error { return CheckNegatives(l.l, n) }

// CheckLabel is that of the loss in it, as CheckScore and CheckNegatives are.
func (l Flops) CheckLabel(y float64) error { return CheckLabel(l.Loss, y) }

func (l Flops) CheckScore(y float64) error { return CheckScore(l.Loss, y) }

func (l Flops) CheckNegatives(n int) error { return CheckNegatives(l.Loss, n) }
