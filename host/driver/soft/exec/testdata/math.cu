// Numbers: integer operations, conversions, and the library functions that a
// compiler expands. Compiled to math.ptx.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define KERNEL extern "C" __global__ void
#define PUT(v) o[n * k++ + i] = (v)

KERNEL singles(const float *x, const float *y, float *o, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, k = 0;
  if (i >= n) return;
  float a = x[i], b = y[i];
  PUT(sinf(a)); PUT(expf(a)); PUT(logf(a)); PUT(powf(a, b)); PUT(sqrtf(a)); PUT(a / b); PUT(tgammaf(a)); PUT(erff(a));
  PUT(fmodf(a, b)); PUT(rintf(a)); PUT(truncf(a)); PUT(__fadd_rd(a, b)); PUT(__fmul_ru(a, b)); PUT(__fdiv_rz(a, b));
  PUT(__fmaf_rz(a, b, a)); PUT(fminf(a, b)); PUT(__sinf(a)); PUT(__expf(a)); PUT(tanhf(a)); PUT(rsqrtf(a));
}

KERNEL doubles(const double *x, const double *y, double *o, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, k = 0;
  if (i >= n) return;
  double a = x[i], b = y[i];
  PUT(sin(a)); PUT(exp(a)); PUT(log(a)); PUT(pow(a, b)); PUT(sqrt(a)); PUT(a / b); PUT(fma(a, b, a)); PUT(__dadd_rd(a, b));
  PUT(__ddiv_rz(a, b)); PUT(floor(a)); PUT(fmod(a, b));
}

KERNEL integers(const long long *x, const long long *y, long long *o, int n) {
  int i = threadIdx.x, k = 0;
  if (i >= n) return;
  long long a = x[i], b = y[i] ? y[i] : 1;
  int c = (int)a, d = (int)b ? (int)b : 3;
  unsigned u = a, v = d;
  PUT(a * b); PUT(a / b); PUT(a % b); PUT(a >> (b & 63)); PUT((unsigned long long)a >> (b & 63)); PUT(a << (b & 63));
  PUT(__mul64hi(a, b)); PUT(__umul64hi(a, b)); PUT(c / 7 + c % d); PUT(u / v); PUT(u % v); PUT(__mulhi(c, d)); PUT(__umulhi(u, v));
  PUT(__clz(c)); PUT(__clzll(a)); PUT(__popc(u)); PUT(__popcll(a)); PUT(__brev(u)); PUT(__brevll(a)); PUT(__ffs(c)); PUT(__ffsll(a));
  PUT(__byte_perm(u, v, 0x6543)); PUT(__funnelshift_l(u, v, d & 31)); PUT(__funnelshift_rc(u, v, d & 63)); PUT(__sad(c, d, u));
  PUT(min(c, d)); PUT(max(u, v)); PUT(llabs(a)); PUT(__mul24(c, d)); PUT((signed char)a); PUT((unsigned short)a);
  PUT((long long)(float)a); PUT((long long)(double)(unsigned long long)a); PUT(__float2int_rn((float)(c >> 8) * 1.5f));
  PUT(__double2ll_rd((double)a * 0.25)); PUT(__dp4a(c, d, c)); PUT(__float_as_int((float)c)); PUT(__ll2float_ru(a)); PUT((short)c / (short)7);
}

KERNEL halves(const float *x, float *o, int n) {
  int i = threadIdx.x, k = 0;
  if (i >= n) return;
  __half a = __float2half(x[i]), b = __float2half(1.5f);
  __half2 c = __halves2half2(a, b);
  c = __hfma2(c, c, __hadd2(c, c));
  PUT(__half2float(__hadd(a, b))); PUT(__half2float(__hmul(a, b))); PUT(__half2float(__hdiv(a, b))); PUT(__low2float(c));
  PUT(__high2float(c)); PUT(__hlt(a, b)); PUT(__half2float(hsqrt(__habs(a)))); PUT(__half2int_rn(a)); PUT(__half2float(__int2half_rn(i)));
  __nv_bfloat16 g = __float2bfloat16(x[i]);
  PUT(__bfloat162float(g)); PUT(__bfloat162float(__hadd(g, g))); PUT(__bfloat162float(__hmul(g, g)));
}
