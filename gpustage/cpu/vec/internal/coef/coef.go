// Package coef holds the constants that package vec's Go code and its generated assembly have in common.
// coefficients.py, beside this file, made those that come of a fit.
package coef

// Exp(x) for float32: with n the multiple of 1/entries nearest to x*log2(e), and r = x - n*ln(2) in two parts,
//
//	exp(x) = 2^floor(n) * T * (1 + r*(c1 + r*(c2 + r*c3))),   T = 2^(n-floor(n)) from a table of entries
//
// Ln2Hi has 24 bits, of which n*Ln2Hi keeps all in a fused multiply-add; the difference x - n*Ln2Hi is exact.
const (
	Log2E = 1.4426950408889634
	Ln2Hi = 0x1.62e43p-1           // ln(2) rounded to float32
	Ln2Lo = -1.904654299957768e-09 // ln(2) - Ln2Hi
	// ExpMin is the least float32 whose exponential is not below 2^-126, the least normal number: below it Exp is zero.
	// ExpMax is the largest float32 whose exponential is finite in float32.
	ExpMin = -0x1.5d589ep6 // -87.33654
	ExpMax = 0x1.62e42ep6  // 88.72283
)

// Exp8 and Exp16 are c1, c2, c3 for tables of 8 and 16 entries. The fits are 2.5e-8 and 1.6e-9 off, relatively. Exp1 is c1 to c6 for
// no table, T = 1: 2.0e-9.
var (
	Exp1  = [6]float32{1.000000032, 0.4999999421, 0.1666643126, 0.04166800204, 0.008374155344, 0.001384365361}
	Exp8  = [3]float32{1.000000049, 0.5000647782, 0.1666429841}
	Exp16 = [3]float32{1.000000003, 0.5000161953, 0.1666607447}
)

// The normal distribution's tail is Phi(-a) = exp(-a*a/2) * N(a)/D(a) for a >= 0: N and D, coefficients from the constant
// up, are 5.5e-9 off relatively, up to a = 14 where exp(-a*a/2) is zero in float32. All coefficients are positive, so
// rounding hardly grows.
var (
	TailN = [5]float32{0.5000000028, 0.4372507561, 0.1824617269, 0.04037252206, 0.00407760604}
	TailD = [6]float32{1, 1.672386467, 1.199290277, 0.4674288297, 0.1012057153, 0.01022091384}
)

const (
	// TailMax is where the tail's argument stops: beyond it exp(-a*a/2) is zero.
	TailMax = 14
	// TailEnd is the largest a for which exp(-a*a/2) is a normal number: sqrt(-2*ExpMin).
	TailEnd = 13.216394
	// Phi0 is the normal density at zero, 1/sqrt(2*pi).
	Phi0 = 0.3989422804014327
)

// The tanh approximation of GELU (Hendrycks and Gimpel, arXiv 1606.08415) is x*sigmoid(x*(Tanh1 + Tanh3*x*x)), because
// (1 + tanh(u))/2 = sigmoid(2u): Tanh1 = 2*sqrt(2/pi), Tanh3 = Tanh1*0.044715.
const (
	Tanh1 = 1.5957691216057308
	Tanh3 = Tanh1 * 0.044715
)

// The multipliers and the key's increments of Philox4x32 (Salmon et al., 2011).
const (
	PhiloxM0 = 0xD2511F53
	PhiloxM1 = 0xCD9E8D57
	PhiloxW0 = 0x9E3779B9
	PhiloxW1 = 0xBB67AE85
)
