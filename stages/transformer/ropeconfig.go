package transformer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
)

// ropeConfig is what config.json says about rotary positions: in transformers 5 rope_parameters, before that rope_theta and
// rope_scaling.
type ropeConfig struct {
	Theta       *float64        `json:"rope_theta"`
	Scaling     json.RawMessage `json:"rope_scaling"`
	Parameters  json.RawMessage `json:"rope_parameters"`
	Partial     *float64        `json:"partial_rotary_factor"`
	OriginalMax *float64        `json:"original_max_position_embeddings"`

	ntk bool // the family's code has the type "ntk", which transformers doesn't
}

// ropeParameters are those of one kind of layer.
type ropeParameters struct {
	Type         string    `json:"rope_type"`
	OldType      string    `json:"type"`
	Theta        *float64  `json:"rope_theta"`
	Partial      *float64  `json:"partial_rotary_factor"`
	Factor       *float64  `json:"factor"`
	Attention    *float64  `json:"attention_factor"`
	OriginalMax  *float64  `json:"original_max_position_embeddings"`
	BetaFast     float64   `json:"beta_fast"`
	BetaSlow     float64   `json:"beta_slow"`
	Truncate     *bool     `json:"truncate"`
	MScale       float64   `json:"mscale"`
	MScaleAll    float64   `json:"mscale_all_dim"`
	LowFreq      *float64  `json:"low_freq_factor"`
	HighFreq     *float64  `json:"high_freq_factor"`
	ShortFactors []float64 `json:"short_factor"`
	LongFactors  []float64 `json:"long_factor"`
	MixedB       *float64  `json:"mixed_b"`

	ntk bool
}

// perLayerType are the parameters of models whose local layers have their own.
type perLayerType struct {
	Full    *ropeParameters `json:"full_attention"`
	Sliding *ropeParameters `json:"sliding_attention"`
}

func absent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// one gives the rotary positions of a model with one kind of them, which turn dim features of each head, and how many tokens they
// are good for. theta is for configurations that don't say.
func (c ropeConfig) one(dim int, theta float64, maxPositions int) (*Rotary, int, error) {
	p := ropeParameters{Truncate: new(true)}
	from := c.Parameters
	if !absent(c.Scaling) && string(c.Scaling) != "{}" {
		from = c.Scaling
	}
	if !absent(from) {
		var nested perLayerType
		if err := json.Unmarshal(from, &nested); err == nil && (nested.Full != nil || nested.Sliding != nil) {
			return nil, 0, fmt.Errorf("rope_parameters by layer type are %w in this family", ErrUnsupported)
		}
		if err := json.Unmarshal(from, &p); err != nil {
			return nil, 0, fmt.Errorf("rope_parameters: %w", err)
		}
	}
	if c.Theta != nil {
		theta = *c.Theta
	}
	p.OriginalMax, p.Truncate, p.ntk = first(c.OriginalMax, p.OriginalMax), new(or(p.Truncate, false)), c.ntk // null is false, as in transformers
	if err := unturned(first(p.Partial, c.Partial)); err != nil {
		return nil, 0, err
	}
	return p.rotary(dim, theta, maxPositions)
}

// two gives the rotary positions of a model's global and of its local layers. theta and localTheta are for parameters that don't
// say. scaledLocal tells that rope_scaling is for the local ones as well.
func (c ropeConfig) two(dim int, theta, localTheta float64, maxPositions int, scaledLocal bool) (global, local *Rotary, longest int, err error) {
	var p perLayerType
	if !absent(c.Parameters) {
		if err := json.Unmarshal(c.Parameters, &p); err != nil {
			return nil, nil, 0, fmt.Errorf("rope_parameters: %w", err)
		}
		if p.Full == nil && p.Sliding == nil {
			return nil, nil, 0, errors.New("rope_parameters has neither full_attention nor sliding_attention")
		}
	}
	for _, x := range []**ropeParameters{&p.Full, &p.Sliding} {
		if *x == nil {
			*x = &ropeParameters{}
		}
		if err := unturned(first((*x).Partial, c.Partial)); err != nil {
			return nil, nil, 0, err
		}
		if !absent(c.Scaling) && (x == &p.Full || scaledLocal) {
			if err := json.Unmarshal(c.Scaling, *x); err != nil {
				return nil, nil, 0, fmt.Errorf("rope_scaling: %w", err)
			}
		}
		if (*x).kind() == "yarn" && !or((*x).Truncate, true) {
			return nil, nil, 0, unsupported("truncate", "false") // transformers does not find it where layers have parameters of their own
		}
	}
	if global, longest, err = p.Full.rotary(dim, theta, maxPositions); err != nil {
		return nil, nil, 0, fmt.Errorf("full_attention: %w", err)
	}
	if local, _, err = p.Sliding.rotary(dim, localTheta, maxPositions); err != nil {
		return nil, nil, 0, fmt.Errorf("sliding_attention: %w", err)
	}
	return global, local, longest, nil
}

// unturned refuses partial_rotary_factor: in these families transformers reads it for some types of rotary positions and not for
// others.
func unturned(partial *float64) error {
	if or(partial, 1) != 1 {
		return unsupported("partial_rotary_factor", fmt.Sprint(*partial))
	}
	return nil
}

func first[T any](values ...*T) *T {
	for _, v := range values {
		if v != nil {
			return v
		}
	}
	return nil
}

func or[T any](v *T, def T) T {
	if v == nil {
		return def
	}
	return *v
}

func (p ropeParameters) kind() string { return cmp.Or(p.Type, p.OldType, "default") }

// rotary computes the frequencies for dim features, and how many positions they are good for, as transformers does
// (modeling_rope_utils.py), but in float64.
func (p ropeParameters) rotary(dim int, theta float64, maxPositions int) (*Rotary, int, error) {
	theta = or(p.Theta, theta)
	kind := p.kind()
	original, factor := or(p.OriginalMax, float64(maxPositions)), or(p.Factor, 0)
	bad := func(what string, args ...any) (*Rotary, int, error) {
		return nil, 0, fmt.Errorf("rotary positions of type %q: %w", kind, fmt.Errorf(what, args...))
	}
	needsFactor := kind == "linear" || kind == "dynamic" || kind == "llama3" || kind == "ntk"
	if (kind == "yarn" || kind == "longrope") && p.Factor == nil {
		factor = float64(maxPositions) / original
	}
	switch {
	case kind == "ntk" && !p.ntk:
		return bad("it is %w in this family", ErrUnsupported)
	case theta <= 0 || !finite(theta):
		return bad("rope_theta is %v", theta)
	case dim < 2 || dim%2 != 0 || dim > 1<<16:
		return bad("%d features of a head are turned, want an even number", dim)
	case needsFactor && factor < 1 || factor < 0:
		return bad("factor is %v, want at least 1", factor)
	case original < 1:
		return bad("original_max_position_embeddings is %v", original)
	case p.Attention != nil && *p.Attention <= 0:
		return bad("attention_factor is %v, want a positive number", *p.Attention)
	}
	r := &Rotary{Frequencies: make([]float64, dim/2)}
	scaled := func(base float64, scale func(j int, f float64) float64) []float64 {
		fs := make([]float64, dim/2)
		for j := range fs {
			fs[j] = scale(j, math.Pow(base, -float64(2*j)/float64(dim)))
		}
		return fs
	}
	plain := func(_ int, f float64) float64 { return f }
	switch kind {
	case "default", "dynamic": // dynamic scales what is longer than max_position_embeddings, which is refused
		r.Frequencies = scaled(theta, plain)
	case "linear":
		r.Frequencies = scaled(theta, func(_ int, f float64) float64 { return f / factor })
	case "ntk":
		if p.MixedB != nil {
			return bad("mixed_b is %w", ErrUnsupported)
		}
		r.Frequencies = scaled(theta*factor, func(_ int, f float64) float64 { return f / math.Pow(factor, 2/float64(dim)) })
	case "yarn":
		p.yarn(r, scaled, dim, theta, factor, original)
		maxPositions = max(maxPositions, int(factor*original))
	case "longrope":
		if len(p.ShortFactors) != dim/2 || len(p.LongFactors) != dim/2 {
			return bad("short_factor has %d numbers and long_factor %d, want %d", len(p.ShortFactors), len(p.LongFactors), dim/2)
		}
		r.Frequencies = scaled(theta, func(j int, f float64) float64 { return f / p.ShortFactors[j] })
		r.Long = scaled(theta, func(j int, f float64) float64 { return f / p.LongFactors[j] })
		r.LongFrom = int(original)
		if r.Factor = or(p.Attention, 0); p.Attention == nil && factor > 1 {
			r.Factor = math.Sqrt(1 + math.Log(factor)/math.Log(original))
		}
	case "llama3":
		if p.LowFreq == nil || p.HighFreq == nil || *p.HighFreq <= *p.LowFreq {
			return bad("want low_freq_factor below high_freq_factor")
		}
		low, high := *p.LowFreq, *p.HighFreq
		r.Frequencies = scaled(theta, func(_ int, f float64) float64 {
			switch wavelength := 2 * math.Pi / f; {
			case wavelength > original/low:
				return f / factor
			case wavelength < original/high:
				return f
			default:
				smooth := (original/wavelength - low) / (high - low)
				return (1-smooth)*f/factor + smooth*f
			}
		})
	default:
		return nil, 0, fmt.Errorf("rotary positions of type %q are %w (supported: default, linear, dynamic, yarn, longrope, llama3)", kind, ErrUnsupported)
	}
	for _, f := range slices.Concat(r.Frequencies, r.Long) {
		if f <= 0 || !finite(f) {
			return bad("its numbers give the frequency %v, want positive ones", f)
		}
	}
	if !finite(r.Factor) {
		return bad("its numbers multiply cosines and sines by %v", r.Factor)
	}
	return r, maxPositions, nil
}

// yarn (Peng et al., arXiv 2309.00071) scales slow frequencies, leaves fast ones, and goes from one to the other in between.
func (p ropeParameters) yarn(r *Rotary, scaled func(float64, func(int, float64) float64) []float64, dim int, theta, factor, original float64) {
	fast, slow := cmp.Or(p.BetaFast, 32), cmp.Or(p.BetaSlow, 1) // 0 is as none, as in transformers
	pair := func(rotations float64) float64 {                   // that turns so often over the original length
		return float64(dim) * math.Log(original/(rotations*2*math.Pi)) / (2 * math.Log(theta))
	}
	low, high := pair(fast), pair(slow)
	if or(p.Truncate, true) {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(dim-1))
	if low == high {
		high += 0.001
	}
	r.Frequencies = scaled(theta, func(j int, f float64) float64 {
		keep := 1 - min(1, max(0, (float64(j)-low)/(high-low)))
		return f/factor*(1-keep) + f*keep
	})
	scale := func(m float64) float64 {
		if factor <= 1 {
			return 1
		}
		return 0.1*m*math.Log(factor) + 1
	}
	switch {
	case p.Attention != nil:
		r.Factor = *p.Attention
	case p.MScale != 0 && p.MScaleAll != 0:
		r.Factor = scale(p.MScale) / scale(p.MScaleAll)
	default:
		r.Factor = scale(1)
	}
}
