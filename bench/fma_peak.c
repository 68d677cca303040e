/* Multiplies and adds in registers only: the most that one core does of the work that products consist of.
 *
 * Compiled with the width of a vector in bytes as BYTES. Each of the twelve sums waits for itself alone, so that both
 * units of a processor with a latency of up to six cycles are busy.
 */
typedef float vector __attribute__((vector_size(BYTES)));

enum { SUMS = 12 };

/* Returns the number of floating-point operations that were done; `sink` keeps the compiler from leaving them out. */
long multiply_and_add(long turns, float *sink) {
    vector factor = (vector){0} + sink[0], addend = (vector){0} + sink[1], sums[SUMS];
    for (int i = 0; i < SUMS; i++) sums[i] = (vector){0} + (float)i;
    for (long turn = 0; turn < turns; turn++) {
#pragma GCC unroll 12
        for (int i = 0; i < SUMS; i++) sums[i] = sums[i] * factor + addend;
    }
    vector total = sums[0];
    for (int i = 1; i < SUMS; i++) total += sums[i];
    sink[2] = total[0];
    return turns * SUMS * (long)(BYTES / sizeof(float)) * 2;
}
