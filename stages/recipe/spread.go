package recipe

import "contraflow/stages/loss"

// checkSpread resolves the options of gor and mega_batch_margin, whose numbers may be 0.
func (c *checker) checkSpread(l *Loss, at string) {
	or := func(to **float64, usual float64) {
		if *to == nil {
			*to = &usual
		}
	}
	switch l.kind().names[0] {
	case "gor":
		c.words(at+".aggregation", "mean", "sum")
		if l.Aggregation == "" {
			l.Aggregation = "mean"
		}
		or(&l.MeanWeight, 1)
		or(&l.SecondMomentWeight, 1)
		if err := (loss.GlobalOrthogonal{Mean: *l.MeanWeight, SecondMoment: *l.SecondMomentWeight}).Check(); err != nil {
			c.fail(at, "%v", err)
		}
	case "mega_batch_margin":
		or(&l.PositiveMargin, 0.8)
		or(&l.NegativeMargin, 0.3)
	}
}
