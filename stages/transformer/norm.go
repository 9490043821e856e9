package transformer

import "contraflow/gpustage"

// norm is a layer norm or an RMS norm: its parameters, or their gradients. One that a family does not have is absent.
type norm struct {
	gamma gpustage.Tensor // [1, C], or [1, D] for one of each head
	beta  gpustage.Tensor // [1, C]; absent without a bias
}

func (n norm) absent() bool { return n.gamma.IsZero() }

// stats is what a norm's backward needs besides its input.
type stats struct {
	mean gpustage.Tensor // [1, T]; of a layer norm
	rstd gpustage.Tensor // [1, T], or [1, T*heads]
}

// keepStats takes room for the statistics of x's rows, in groups of n's length.
func (p *Pass) keepStats(n norm, x gpustage.Tensor) stats {
	s := stats{rstd: p.keep(1, x.Rows*(x.Cols/n.gamma.Cols))}
	if p.m.Config.Norm == LayerNorm {
		s.mean = p.keep(1, x.Rows)
	}
	return s
}

// norm is y = norm(x); y may be x.
func (p *Pass) norm(n norm, y gpustage.Tensor, st stats, x gpustage.Tensor) {
	switch c := p.m.Config; c.Norm {
	case LayerNorm:
		p.s.LayerNorm(y, st.mean, st.rstd, x, n.gamma, n.beta, c.NormEps)
	default:
		p.s.RMSNorm(y, st.rstd, x, n.gamma, c.NormEps, c.normOffset())
	}
}

// normBackward gives dx, which may be dy, and adds to g.
func (p *Pass) normBackward(n, g norm, dx, dy gpustage.Tensor, st stats, x gpustage.Tensor) {
	p.normBackwardThen(n, g, dx, dy, st, x, gpustage.Dropped{})
}

// normBackwardThen is normBackward with what follows it.
func (p *Pass) normBackwardThen(n, g norm, dx, dy gpustage.Tensor, st stats, x gpustage.Tensor, then gpustage.Dropped) {
	switch c := p.m.Config; c.Norm {
	case LayerNorm:
		p.s.LayerNormBackward(dx, g.gamma, g.beta, dy, x, st.mean, st.rstd, n.gamma, then)
	default:
		p.s.RMSNormBackward(dx, g.gamma, dy, x, st.rstd, n.gamma, c.normOffset())
		then.Of(p.s, dx)
	}
}

func (c Config) normOffset() float64 {
	if c.Norm == RMSNormUnit {
		return 1
	}
	return 0
}
