// What GPUs compute less exactly than a processor, for host_cuda.h. Without HOST_ROUNDING it is what the processor makes of it.
//
// With it a result is as far off as it may be on a GPU, by the whole of a bound, up or down by a hash of the argument, every time the same way. At an
// argument of 0, and where the result is 0, infinite or a NaN, it is exact, as the documents say. The bounds, in units in the last place:
//
//   - ex2.approx 2, rcp.approx 1; with .ftz, arguments and results below the least normal number are 0 (PTX ISA, Floating Point Instructions).
//   - expf 2, tanhf 2, logf, log1pf and expm1f 1 (CUDA C++ Programming Guide, Mathematical Functions, maximum errors of standard functions in single precision). Sums,
//     products, quotients and sqrtf are correctly rounded with the options that NVRTC has by default, and 1.f / sqrtf(x) stays what it says. The kernels
//     have no other functions, and none of the fast intrinsics; one that comes to them belongs here.
//   - A product is not rounded before it is added (-fmad=true; here -ffp-contract=fast, where the processor has such instructions).
//   - Tensor cores truncate. An A100's, the coarsest from sm_80 on, take 8 products of bf16 or 4 of TF32 and the sum so far, cut each one bit below the
//     last that the largest has in f32, add, and cut that to f32; those of an H100 and a B200 take twice as many and keep a bit more. NVIDIA does not say
//     so: it has been measured (Fasi, Higham, Mikaitis, Pranesh: Numerical behavior of NVIDIA tensor cores, PeerJ Computer Science 7:e330, 2021; Khattak,
//     Mikaitis: Accurate models of NVIDIA tensor cores, arXiv 2512.07004).
#pragma once

#ifndef HOST_ROUNDING

inline float host_power_of_two(float x) { return exp2f(x); }
inline float host_reciprocal(float x) { return 1.f / x; }

// host_products adds 16 products to each of four sums: of row i / 2 of x and row i % 2 of y.
HOST_OWN inline void host_products(float c[4], const float x[2][16], const float y[2][16]) {
	for (int i = 0; i < 4; i++) {
		float sum = 0.f;
		for (int k = 0; k < 16; k++) sum += x[i / 2][k] * y[i % 2][k];
		c[i] += sum;
	}
}

#else

// host_off is a function's value y of x, so many units in the last place off.
inline float host_off(unsigned function, float x, float y, int units) {
	unsigned bits = host_bits(y), sign = bits & 0x80000000u, size = bits ^ sign;
	if (x == 0.f || size == 0 || size >= 0x7f800000) return y;
	unsigned hash = (host_bits(x) + function) * 0x9E3779B1u;
	hash = (hash ^ hash >> 15) * 0x85EBCA77u;
	if (hash >> 31) size = min(size + units, 0x7f800000u);
	else size -= min(size, (unsigned)units);
	return host_value(sign | size);
}

// host_normal is 0 for what is below the least normal number.
inline float host_normal(float v) { return fabsf(v) < 0x1p-126f ? 0.f * v : v; }

inline float host_power_of_two(float x) { return x = host_normal(x), host_normal(host_off(1, x, (float)exp2((double)x), 2)); }
inline float host_reciprocal(float x) { return x = host_normal(x), host_normal(host_off(2, x, 1.f / x, 1)); }
inline float host_expf(float x) { return host_off(3, x, (float)exp((double)x), 2); }
inline float host_tanhf(float x) { return host_off(4, x, (float)tanh((double)x), 2); }
inline float host_logf(float x) { return host_off(5, x, (float)log((double)x), 1); }
inline float host_log1pf(float x) { return host_off(6, x, (float)log1p((double)x), 1); }
inline float host_expm1f(float x) { return host_off(7, x, (float)expm1((double)x), 1); }
#define expf host_expf
#define tanhf host_tanhf
#define logf host_logf
#define log1pf host_log1pf
#define expm1f host_expm1f

HOST_OWN inline void host_products(float c[4], const float x[2][16], const float y[2][16]) {
	typedef double Doubles __attribute__((vector_size(32))); // the four side by side: one of them would wait for itself most of the time
	typedef int64_t Longs __attribute__((vector_size(32)));
	typedef int Ints __attribute__((vector_size(16)));
	const int64_t one = 1ll << 52, exponents = 0x7ff * one; // one more in the exponent
	for (int from = 0; from < 16; from += 8) {
		Doubles terms[9] = {{c[0], c[1], c[2], c[3]}};
		for (int k = 0; k < 8; k++) {
			const double x0 = x[0][from + k], x1 = x[1][from + k], y0 = y[0][from + k], y1 = y[1][from + k];
			terms[k + 1] = Doubles{x0, x0, x1, x1} * Doubles{y0, y1, y0, y1};
		}
		Longs top = (Longs)terms[0] & exponents;
		for (int k = 1; k < 9; k++) {
			const Longs each = (Longs)terms[k] & exponents;
			top = each > top ? each : top;
		}
		const Doubles up = (Doubles)((2 * 1023 + 24) * one - top), down = (Doubles)(top - 24 * one); // by up the largest has 25 bits before the point
		Ints sum = {};
		for (int k = 0; k < 9; k++) sum += __builtin_convertvector(terms[k] * up, Ints);
		const Doubles total = (Doubles)((Longs)(__builtin_convertvector(sum, Doubles) * down) & ~((1ll << 29) - 1)); // without what f32 has no room for
		for (int i = 0; i < 4; i++) {
			if (top[i] != 0 && top[i] != exponents) c[i] = (float)total[i];
			else for (int k = 1; k < 9; k++) c[i] += (float)terms[k][i]; // nothing to add, or infinite
		}
	}
}

#endif
