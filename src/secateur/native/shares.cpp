// For every unit of input channels: the largest share it has in any output at any patch. Called from shares.py.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__AVX512F__)
constexpr int BYTES = 64;
#else
constexpr int BYTES = 32;
#endif
constexpr int BLOCK = 4;  // outputs that are computed together
constexpr int PAIR = 2;   // vectors of patches that are computed together

template <typename Real> struct Lanes;
template <> struct Lanes<float> {
    typedef float Vec __attribute__((vector_size(BYTES), aligned(4), may_alias));
};
template <> struct Lanes<double> {
    typedef double Vec __attribute__((vector_size(BYTES), aligned(8), may_alias));
};
typedef int64_t Longs __attribute__((vector_size(BYTES)));

template <typename Real> struct Kernel {
    typedef typename Lanes<Real>::Vec Vec;
    static constexpr int LANES = BYTES / sizeof(Real);
    static constexpr int WIDE = 4 * LANES;  // patches of a panel

    static Vec load(const Real *p) { return *(const Vec *)p; }
    static void store(Real *p, Vec v) { *(Vec *)p = v; }
    static Vec larger(Vec a, Vec b) { return a > b ? a : b; }
    static Vec smaller(Vec a, Vec b) { return a < b ? a : b; }

    static inline __attribute__((always_inline)) void contributions(
        Vec c[BLOCK][PAIR], const Real *w, const Real *a, int64_t rows)
    {
        for (int b = 0; b < BLOCK; b++)
            for (int v = 0; v < PAIR; v++) c[b][v] = Vec{};
        for (int64_t r = 0; r < rows; r++) {
            Vec a0 = load(a + r * WIDE), a1 = load(a + r * WIDE + LANES);
            for (int b = 0; b < BLOCK; b++) {
                c[b][0] += w[r * BLOCK + b] * a0;
                c[b][1] += w[r * BLOCK + b] * a1;
            }
        }
    }

    static int run(const Real *x, const int64_t *row_offset, const int64_t *patch_offset, const Real *w,
                    const Real *norm, const int64_t *start, const Real *z, const int64_t *z_offset, int64_t z_stride,
                    int64_t z_half, int64_t units, int64_t outputs, int64_t first, int64_t last, Real *share)
    {
        const int64_t rows = start[units], blocks = (outputs + BLOCK - 1) / BLOCK;
        Real *a = (Real *)aligned_alloc(64, sizeof(Real) * WIDE * (size_t)(rows + units + blocks * (2 * BLOCK + 1)));
        if (!a) return -1;
        Real *size = a + rows * WIDE;
        Real *over = size + units * WIDE;
        Real *most = over + blocks * 2 * BLOCK * WIDE;
        for (int64_t p = first; p < last; p += WIDE) {
            const int n = last - p < WIDE ? (int)(last - p) : WIDE;
            const int64_t *at = patch_offset + p;
            bool runs[WIDE / LANES];
            for (int v = 0; v < WIDE / LANES; v++)
                runs[v] = (v + 1) * LANES <= n && at[(v + 1) * LANES - 1] - at[v * LANES] == LANES - 1;
            for (int64_t r = 0; r < rows; r++) {
                const Real *from = x + row_offset[r];
                Real *to = a + r * WIDE;
                for (int v = 0; v < WIDE / LANES; v++) {
                    if (runs[v]) store(to + v * LANES, load(from + at[v * LANES]));
                    else
                        for (int q = v * LANES; q < (v + 1) * LANES; q++) to[q] = q < n ? from[at[q]] : 0;
                }
            }
            for (int64_t j = 0; j < units; j++)
                for (int v = 0; v < WIDE; v += LANES) {
                    Vec sum{};
                    for (int64_t r = start[j]; r < start[j + 1]; r++) {
                        Vec t = load(a + r * WIDE + v);
                        sum += t * t;
                    }
                    for (int q = 0; q < LANES; q++) size[j * WIDE + v + q] = std::sqrt(sum[q]);
                }
            for (int64_t k = 0; k < blocks; k++) {
                Real *zp = over + k * 2 * BLOCK * WIDE, *zn = zp + BLOCK * WIDE, *top = most + k * WIDE;
                if (z) {
                    for (int b = 0; b < BLOCK; b++)
                        for (int q = 0; q < WIDE; q++) {
                            bool real = k * BLOCK + b < outputs && q < n;
                            const Real *from = z + (real ? z_offset[p + q] + (k * BLOCK + b) * z_stride : 0);
                            zp[b * WIDE + q] = real ? from[0] : 0;
                            zn[b * WIDE + q] = real ? from[z_half] : 0;
                        }
                } else {
                    memset(zp, 0, sizeof(Real) * 2 * BLOCK * WIDE);
                    for (int64_t j = 0; j < units; j++) {
                        const Real *wj = w + (k * rows + start[j]) * BLOCK;
                        for (int v = 0; v < WIDE; v += PAIR * LANES) {
                            Vec c[BLOCK][PAIR];
                            contributions(c, wj, a + start[j] * WIDE + v, start[j + 1] - start[j]);
                            for (int b = 0; b < BLOCK; b++)
                                for (int u = 0; u < PAIR; u++) {
                                    Real *plus = zp + b * WIDE + v + u * LANES, *minus = zn + b * WIDE + v + u * LANES;
                                    store(plus, load(plus) + larger(c[b][u], Vec{}));
                                    store(minus, load(minus) - smaller(c[b][u], Vec{}));
                                }
                        }
                    }
                }
                for (int q = 0; q < WIDE; q++) top[q] = 0;
                for (int b = 0; b < 2 * BLOCK; b++)
                    for (int q = 0; q < WIDE; q++) {
                        Real t = zp[b * WIDE + q];
                        t = t > 0 ? 1 / t : 0;
                        zp[b * WIDE + q] = t;
                        top[q] = t > top[q] ? t : top[q];
                    }
            }
            for (int64_t j = 0; j < units; j++) {
                const Real *sj = size + j * WIDE;
                Real best = share[j];
                for (int64_t k = 0; k < blocks; k++) {
                    const Real *top = most + k * WIDE;
                    const Real weight = norm[k * units + j];
                    Longs hit{};
                    for (int v = 0; v < WIDE; v += LANES)
                        hit |= (Longs)(weight * load(sj + v) * load(top + v) > Vec{} + best);
                    int64_t any = 0;
                    for (int q = 0; q < BYTES / 8; q++) any |= hit[q];
                    if (!any) continue;
                    const Real *wj = w + (k * rows + start[j]) * BLOCK;
                    const Real *rp = over + k * 2 * BLOCK * WIDE, *rn = rp + BLOCK * WIDE;
                    Vec found{};
                    for (int v = 0; v < WIDE; v += PAIR * LANES) {
                        Vec c[BLOCK][PAIR];
                        contributions(c, wj, a + start[j] * WIDE + v, start[j + 1] - start[j]);
                        for (int b = 0; b < BLOCK; b++)
                            for (int u = 0; u < PAIR; u++) {
                                found = larger(found, c[b][u] * load(rp + b * WIDE + v + u * LANES));
                                found = larger(found, -c[b][u] * load(rn + b * WIDE + v + u * LANES));
                            }
                    }
                    for (int q = 0; q < LANES; q++) best = found[q] > best ? found[q] : best;
                }
                share[j] = best;
            }
        }
        free(a);
        return 0;
    }
};

#define ENTRY(name, Real)                                                                                            \
    extern "C" int name(const Real *x, const int64_t *ro, const int64_t *po, const Real *w, const Real *norm,       \
                         const int64_t *start, const Real *z, const int64_t *zo, int64_t zs, int64_t zh, int64_t u,  \
                         int64_t o, int64_t first, int64_t last, Real *share)                                        \
    { return Kernel<Real>::run(x, ro, po, w, norm, start, z, zo, zs, zh, u, o, first, last, share); }
ENTRY(shares_f32, float)
ENTRY(shares_f64, double)
