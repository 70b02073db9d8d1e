//: title: a password search as hashcat's: MD5 of every word of a mask, short launches in a row, four bytes read back after each
//: part: 3
#include "compat.h"
#include <chrono>
#include <cstring>

// MD5 of one block (RFC 1321): a message of at most 55 bytes.
__host__ __device__ static inline uint32_t rotate(uint32_t x, int n) { return x << n | x >> (32 - n); }

__device__ __constant__ uint32_t sines[64];
__device__ __constant__ int shifts[16];
static uint32_t host_sines[64];
static const int host_shifts[16] = {7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21};

__host__ __device__ static void md5(const uint32_t *m, uint32_t *out) {
#ifdef __CUDA_ARCH__
  const uint32_t *k = sines;
  const int *s = shifts;
#else
  const uint32_t *k = host_sines;
  const int *s = host_shifts;
#endif
  uint32_t a = 0x67452301, b = 0xefcdab89, c = 0x98badcfe, d = 0x10325476;
  for (int i = 0; i < 64; i++) {
    uint32_t f;
    int g;
    switch (i >> 4) {
    case 0: f = (b & c) | (~b & d), g = i; break;
    case 1: f = (d & b) | (~d & c), g = (5 * i + 1) & 15; break;
    case 2: f = b ^ c ^ d, g = (3 * i + 5) & 15; break;
    default: f = c ^ (b | ~d), g = (7 * i) & 15;
    }
    uint32_t t = d;
    d = c, c = b;
    b += rotate(a + f + k[i] + m[g], s[(i >> 4) * 4 + (i & 3)]);
    a = t;
  }
  out[0] = a + 0x67452301, out[1] = b + 0xefcdab89, out[2] = c + 0x98badcfe, out[3] = d + 0x10325476;
}

constexpr int length = 7; // letters a to z

__host__ __device__ static void word(uint64_t n, uint32_t *m) {
  unsigned char text[64] = {};
  for (int i = 0; i < length; i++, n /= 26) text[i] = 'a' + n % 26;
  text[length] = 0x80;
  for (int i = 0; i < 16; i++) m[i] = text[4 * i] | text[4 * i + 1] << 8 | text[4 * i + 2] << 16 | (uint32_t)text[4 * i + 3] << 24;
  m[14] = length * 8;
}

struct Found {
  unsigned count;
  unsigned long long at;
};

__global__ void search(uint64_t from, const uint32_t *want, Found *found) {
  uint64_t n = from + blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
  uint32_t m[16], h[4];
  word(n, m);
  md5(m, h);
  if (h[0] == want[0] && h[1] == want[1] && h[2] == want[2] && h[3] == want[3]) {
    atomicAdd(&found->count, 1);
    found->at = n;
  }
}

int main(int argc, char **argv) {
  int launches = argc > 1 ? std::atoi(argv[1]) : 2000, blocks = 4096, threads = 256;
  // 2^32 |sin(i + 1)|, as the standard has them.
  for (int i = 0; i < 64; i++) {
    double s = __builtin_sin(i + 1.0);
    host_sines[i] = (uint32_t)((s < 0 ? -s : s) * 4294967296.0);
  }
  OK(cudaMemcpyToSymbol(sines, host_sines, sizeof host_sines));
  OK(cudaMemcpyToSymbol(shifts, host_shifts, sizeof host_shifts));
  uint64_t batch = (uint64_t)blocks * threads, secret = batch * launches - batch / 3;
  uint32_t m[16], want[4];
  word(secret, m);
  md5(m, want);
  std::printf("digest %08x%08x%08x%08x\n", want[0], want[1], want[2], want[3]);
  uint32_t *d_want;
  Found *d_found, zero = {}, got = {};
  OK(cudaMalloc(&d_want, sizeof want));
  OK(cudaMalloc(&d_found, sizeof zero));
  OK(cudaMemcpy(d_want, want, sizeof want, cudaMemcpyHostToDevice));
  OK(cudaMemcpy(d_found, &zero, sizeof zero, cudaMemcpyHostToDevice));
  auto start = std::chrono::steady_clock::now();
  int tried = 0;
  while (tried < launches && !got.count) {
    search<<<blocks, threads>>>(batch * tried++, d_want, d_found);
    OK(cudaGetLastError());
    OK(cudaMemcpy(&got.count, &d_found->count, sizeof got.count, cudaMemcpyDeviceToHost));
  }
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  OK(cudaMemcpy(&got, d_found, sizeof got, cudaMemcpyDeviceToHost));
  if (got.count != 1 || got.at != secret) std::exit((std::printf("found %u times, at %llu\n", got.count, got.at), 1));
  word(got.at, m);
  std::printf("found %.*s after %d launches\n", length, (const char *)m, tried);
  std::printf("# %.0f million words a second\n", tried * (double)batch / seconds / 1e6);
}
