// For every unit of input channels: its largest share in any output at any position, or the sum of all its shares.
// Called from shares.py.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#if defined(__AVX512F__)
constexpr int BYTES = 64;
#else
constexpr int BYTES = 32;
#endif
constexpr int BLOCK = 6;  // outputs that are computed together
constexpr int PAIR = 2;   // vectors of positions that are computed together

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
    static constexpr int WIDE = 4 * LANES;  // positions of a panel

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

    // A share from here on cannot rise any more; it is 1 except for rounding.
    static constexpr Real full() { return 1 - 4 * (sizeof(Real) == 4 ? Real(1.2e-7) : Real(2.3e-16)); }

    // A sum that is not above it counts as zero: its inverse could be infinite.
    static constexpr Real least() { return std::numeric_limits<Real>::min(); }

    // The offsets of the `n` positions of a panel; the rest of the panel is filled with zeros.
    struct Positions {
        const int64_t *at;
        int n;
        bool run[WIDE / LANES];  // whether the positions of a vector are contiguous

        Positions(const int64_t *at, int n) : at(at), n(n)
        {
            for (int v = 0; v < WIDE / LANES; v++)
                run[v] = (v + 1) * LANES <= n && at[(v + 1) * LANES - 1] - at[v * LANES] == LANES - 1;
        }

        void copy(Real *to, const Real *from) const
        {
            for (int v = 0; v < WIDE / LANES; v++) {
                if (run[v])
                    store(to + v * LANES, load(from + at[v * LANES]));
                else
                    for (int q = v * LANES; q < (v + 1) * LANES; q++) to[q] = q < n ? from[at[q]] : 0;
            }
        }
    };

    // The norm of one unit's rows at each position; returns whether any is above zero.
    static bool norms(Real *size, const Real *a, int64_t rows)
    {
        Real most = 0;
        for (int v = 0; v < WIDE; v += LANES) {
            Vec sum{};
            for (int64_t r = 0; r < rows; r++) sum += load(a + r * WIDE + v) * load(a + r * WIDE + v);
            for (int q = 0; q < LANES; q++) {
                size[v + q] = std::sqrt(sum[q]);
                most = size[v + q] > most ? size[v + q] : most;
            }
        }
        return most > 0;
    }

    // z+ and z- of BLOCK outputs: the sums of the contributions of all units, by sign.
    static void sums(Real *plus, Real *minus, const Real *w, const Real *a, const int64_t *start, int64_t units)
    {
        memset(plus, 0, sizeof(Real) * BLOCK * WIDE);
        memset(minus, 0, sizeof(Real) * BLOCK * WIDE);
        for (int64_t j = 0; j < units; j++)
            for (int v = 0; v < WIDE; v += PAIR * LANES) {
                Vec c[BLOCK][PAIR];
                contributions(c, w + start[j] * BLOCK, a + start[j] * WIDE + v, start[j + 1] - start[j]);
                for (int b = 0; b < BLOCK; b++)
                    for (int u = 0; u < PAIR; u++) {
                        Real *p = plus + b * WIDE + v + u * LANES, *m = minus + b * WIDE + v + u * LANES;
                        store(p, load(p) + larger(c[b][u], Vec{}));
                        store(m, load(m) - smaller(c[b][u], Vec{}));
                    }
            }
    }

    // Replace z by 1/z, or 0 where z counts as zero, and put the largest of each position into `top`.
    static void invert(Real *z, Real *top)
    {
        for (int q = 0; q < WIDE; q++) top[q] = 0;
        for (int b = 0; b < 2 * BLOCK; b++)
            for (int q = 0; q < WIDE; q++) {
                Real t = z[b * WIDE + q];
                t = t > least() ? 1 / t : 0;
                z[b * WIDE + q] = t;
                top[q] = t > top[q] ? t : top[q];
            }
    }

    // Whether a share of the unit in the block may lie above `best`: |c| is at most the product of the norms.
    static bool may_rise(const Real *size, const Real *top, Real weight, Real best)
    {
        Longs hit{};
        for (int v = 0; v < WIDE; v += LANES)
            hit |= (Longs)(weight * load(size + v) * load(top + v) > Vec{} + best);
        int64_t any = 0;
        for (int q = 0; q < BYTES / 8; q++) any |= hit[q];
        return any != 0;
    }

    // The largest share of the unit in the outputs of a block.
    static Real best_share(const Real *over_plus, const Real *over_minus, const Real *w, const Real *a, int64_t rows)
    {
        Vec found{};
        for (int v = 0; v < WIDE; v += PAIR * LANES) {
            Vec c[BLOCK][PAIR];
            contributions(c, w, a + v, rows);
            for (int b = 0; b < BLOCK; b++)
                for (int u = 0; u < PAIR; u++) {
                    found = larger(found, c[b][u] * load(over_plus + b * WIDE + v + u * LANES));
                    found = larger(found, -c[b][u] * load(over_minus + b * WIDE + v + u * LANES));
                }
        }
        Real best = 0;
        for (int q = 0; q < LANES; q++) best = found[q] > best ? found[q] : best;
        return best;
    }

    static int run(
        const Real *x, const int64_t *row_offset, const int64_t *position_offset,
        const Real *w,         // [blocks][rows][BLOCK]
        const Real *norm,      // [blocks][units]: the largest norm of the unit's weights among the outputs of the block
        const int64_t *start,  // [units + 1]: the first row of each unit
        const Real *z, const int64_t *z_offset, int64_t z_stride, int64_t z_half,  // z+ and, z_half on, z-, if known
        int64_t units, int64_t outputs, int64_t first, int64_t last, Real *share)
    {
        const int64_t rows = start[units], blocks = (outputs + BLOCK - 1) / BLOCK;
        Real *a = (Real *)aligned_alloc(64, sizeof(Real) * WIDE * (size_t)(rows + units + blocks * (2 * BLOCK + 1)));
        int64_t *open = (int64_t *)malloc(sizeof(int64_t) * (size_t)units);
        if (!a || !open) return -1;
        Real *size = a + rows * WIDE;                   // [units][WIDE]
        Real *over = size + units * WIDE;               // [blocks][2][BLOCK][WIDE]
        Real *most = over + blocks * 2 * BLOCK * WIDE;  // [blocks][WIDE]
        for (int64_t p = first; p < last; p += WIDE) {
            const int n = last - p < WIDE ? (int)(last - p) : WIDE;
            const Positions here(position_offset + p, n);
            for (int64_t r = 0; r < rows; r++) here.copy(a + r * WIDE, x + row_offset[r]);
            int64_t left = 0;  // units whose share may still rise, here
            for (int64_t j = 0; j < units; j++)
                if (share[j] < full() && norms(size + j * WIDE, a + start[j] * WIDE, start[j + 1] - start[j]))
                    open[left++] = j;
            if (!left) continue;
            for (int64_t k = 0; k < blocks; k++) {
                Real *plus = over + k * 2 * BLOCK * WIDE, *minus = plus + BLOCK * WIDE;
                if (z) {
                    const Positions there(z_offset + p, n);
                    for (int b = 0; b < BLOCK; b++) {
                        const int64_t i = k * BLOCK + b < outputs ? k * BLOCK + b : outputs - 1;  // a repeated output changes nothing
                        there.copy(plus + b * WIDE, z + i * z_stride);
                        there.copy(minus + b * WIDE, z + i * z_stride + z_half);
                    }
                } else {
                    sums(plus, minus, w + k * rows * BLOCK, a, start, units);
                }
                invert(plus, most + k * WIDE);
            }
            for (int64_t o = 0; o < left; o++) {
                const int64_t j = open[o];
                for (int64_t k = 0; k < blocks && share[j] < full(); k++) {
                    if (!may_rise(size + j * WIDE, most + k * WIDE, norm[k * units + j], share[j])) continue;
                    const Real *plus = over + k * 2 * BLOCK * WIDE;
                    Real found = best_share(plus, plus + BLOCK * WIDE, w + (k * rows + start[j]) * BLOCK,
                                            a + start[j] * WIDE, start[j + 1] - start[j]);
                    share[j] = found > share[j] ? found : share[j];
                }
            }
        }
        free(open);
        free(a);
        return 0;
    }

    // Add to `sum` each unit's shares in BLOCK outputs at PAIR vectors of positions, or their squares. Contributions
    // stay in `c`, [units][BLOCK][PAIR], until z+ and z- are known.
    static void add_shares(
        Vec *sum, Vec *c, const Real *w, const Real *a, const int64_t *start, int64_t units, bool squared)
    {
        constexpr int N = BLOCK * PAIR;
        Vec plus[N] = {}, minus[N] = {};
        for (int64_t j = 0; j < units; j++) {
            Vec now[BLOCK][PAIR];
            contributions(now, w + start[j] * BLOCK, a + start[j] * WIDE, start[j + 1] - start[j]);
            for (int n = 0; n < N; n++) {
                const Vec v = now[n / PAIR][n % PAIR];
                c[j * N + n] = v;
                plus[n] += larger(v, Vec{});
                minus[n] -= smaller(v, Vec{});
            }
        }
        for (int n = 0; n < N; n++) {
            plus[n] = plus[n] > Vec{} + least() ? 1 / plus[n] : Vec{};
            minus[n] = minus[n] > Vec{} + least() ? 1 / minus[n] : Vec{};
        }
        for (int64_t j = 0; j < units; j++) {
            Vec found{};
            for (int n = 0; n < N; n++) {
                const Vec share = larger(c[j * N + n] * plus[n], -c[j * N + n] * minus[n]);
                found += squared ? share * share : share;
            }
            sum[j] += found;
        }
    }

    static int sum_shares(
        const Real *x, const int64_t *row_offset, const int64_t *position_offset, const Real *w, const int64_t *start,
        int64_t squared, int64_t units, int64_t outputs, int64_t first, int64_t last, double *sum)
    {
        const int64_t rows = start[units], blocks = (outputs + BLOCK - 1) / BLOCK;
        Real *a = (Real *)aligned_alloc(64, sizeof(Real) * WIDE * (size_t)rows);
        Vec *c = (Vec *)aligned_alloc(BYTES, sizeof(Vec) * (BLOCK * PAIR + 1) * (size_t)units);
        if (!a || !c) {
            free(a);
            free(c);
            return -1;
        }
        Vec *here = c + units * BLOCK * PAIR;  // [units]: the sums of a panel
        for (int64_t p = first; p < last; p += WIDE) {
            const Positions positions(position_offset + p, last - p < WIDE ? (int)(last - p) : WIDE);
            for (int64_t r = 0; r < rows; r++) positions.copy(a + r * WIDE, x + row_offset[r]);
            memset((void *)here, 0, sizeof(Vec) * (size_t)units);
            for (int64_t k = 0; k < blocks; k++)
                for (int v = 0; v < WIDE; v += PAIR * LANES)
                    add_shares(here, c, w + k * rows * BLOCK, a + v, start, units, squared != 0);
            for (int64_t j = 0; j < units; j++)
                for (int q = 0; q < LANES; q++) sum[j] += here[j][q];
        }
        free(c);
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

#define SUM_ENTRY(name, Real)                                                                                        \
    extern "C" int name(const Real *x, const int64_t *ro, const int64_t *po, const Real *w, const int64_t *start,   \
                         int64_t squared, int64_t u, int64_t o, int64_t first, int64_t last, double *sum)            \
    { return Kernel<Real>::sum_shares(x, ro, po, w, start, squared, u, o, first, last, sum); }
SUM_ENTRY(share_sums_f32, float)
SUM_ENTRY(share_sums_f64, double)
