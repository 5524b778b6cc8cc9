// What one core of this machine allows, as short as it can be written: no library, no checks, no sharing.
// Used by the benchmarks only; no part of the product. Every call is timed here, so that no foreign call is in it.
#define _GNU_SOURCE
#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { DRAW = 1, GATHER = 2, UPDATE = 4 };
enum { AHEAD = 16, LINE = 64, FIRST_LINES = 8 };

// Rows lie whole, one after another; a gather writes their columns to one output array each.
// The tree is binary: children of node i are 2i and 2i+1, the leaves start at `leaves` (a power of two).
struct table {
    const char *rows;
    uint64_t n_rows, row_bytes, n_columns;
    const uint64_t *offset, *bytes;  // of each column in a row
    char **out;
    double *tree;
    uint64_t leaves;
    uint64_t *node;  // scratch, one a draw
    double *mass;
    uint64_t random;
};

static double now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static inline uint64_t next_random(uint64_t *x) {  // xorshift64*
    *x ^= *x >> 12, *x ^= *x << 25, *x ^= *x >> 27;
    return *x * 2685821657736338717u;
}

static inline void copy(char *to, const char *from, uint64_t n) {
    switch (n) {  // sizes known when compiled become single moves
        case 1: memcpy(to, from, 1); break;
        case 4: memcpy(to, from, 4); break;
        case 8: memcpy(to, from, 8); break;
        case 16: memcpy(to, from, 16); break;
        default: memcpy(to, from, n);
    }
}

static void draw_uniform(struct table *t, uint64_t batch) {
    for (uint64_t i = 0; i < batch; i++)
        t->node[i] = (uint64_t)(((unsigned __int128)next_random(&t->random) * t->n_rows) >> 64);
}

// All draws descend together, level by level: their cache misses overlap.
static void draw_by_priority(struct table *t, uint64_t batch) {
    const double *restrict tree = t->tree;
    double *restrict mass = t->mass;
    uint64_t *restrict node = t->node;
    for (uint64_t i = 0; i < batch; i++) {
        mass[i] = (double)(next_random(&t->random) >> 11) * 0x1p-53 * tree[1];
        node[i] = 1;
    }
    for (uint64_t level = 1; level < t->leaves; level *= 2)
        for (uint64_t i = 0; i < batch; i++) {
            double left = tree[2 * node[i]];
            uint64_t right = mass[i] >= left;
            mass[i] -= left * (double)right;  // no branch: it would be mispredicted half the time
            node[i] = 2 * node[i] + right;
        }
    for (uint64_t i = 0; i < batch; i++) {
        uint64_t row = node[i] - t->leaves;
        node[i] = row < t->n_rows ? row : t->n_rows - 1;
    }
}

static void gather(struct table *t, uint64_t batch) {
    uint64_t lines = t->row_bytes / LINE + 1;
    if (lines > FIRST_LINES) lines = FIRST_LINES;  // the hardware follows a long row by itself
    for (uint64_t i = 0; i < batch; i++) {
        if (i == 0)
            for (uint64_t j = 0; j < AHEAD && j < batch; j++)
                for (uint64_t k = 0; k < lines; k++) __builtin_prefetch(t->rows + t->node[j] * t->row_bytes + k * LINE);
        if (i + AHEAD < batch)
            for (uint64_t k = 0; k < lines; k++) __builtin_prefetch(t->rows + t->node[i + AHEAD] * t->row_bytes + k * LINE);
        const char *row = t->rows + t->node[i] * t->row_bytes;
        for (uint64_t c = 0; c < t->n_columns; c++) copy(t->out[c] + i * t->bytes[c], row + t->offset[c], t->bytes[c]);
    }
}

static void update(struct table *t, uint64_t batch, double value) {
    double *tree = t->tree;
    uint64_t *restrict node = t->node;
    for (uint64_t i = 0; i < batch; i++) {
        node[i] += t->leaves;
        tree[node[i]] = value + 0.001 * (double)i;
    }
    for (uint64_t level = 1; level < t->leaves; level *= 2)
        for (uint64_t i = 0; i < batch; i++) {
            uint64_t parent = node[i] >>= 1;
            tree[parent] = tree[2 * parent] + tree[2 * parent + 1];
        }
}

// Time `calls` batches of what `steps` asks for. Rows are drawn anew each time; uniform draws outside the clock
// when only the update is timed.
void measure_batch(struct table *t, uint64_t batch, int steps, uint64_t calls, double *ns) {
    for (uint64_t n = 0; n < calls; n++) {
        if (steps == UPDATE) draw_by_priority(t, batch);
        double start = now_ns();
        if (steps & DRAW) draw_by_priority(t, batch);
        else if (steps & GATHER) draw_uniform(t, batch);
        if (steps & GATHER) gather(t, batch);
        if (steps & UPDATE) update(t, batch, 0.1 + 1e-3 * (double)(n % 500));
        ns[n] = now_ns() - start;
    }
}

// Time `calls` copies of `bytes` from a pool into a ring, both walked through in order.
void measure_copy(char *ring, uint64_t ring_bytes, const char *pool, uint64_t pool_bytes, uint64_t bytes, uint64_t *at,
                  uint64_t calls, double *ns) {
    uint64_t to = *at, from = 0;
    for (uint64_t n = 0; n < calls; n++) {
        double start = now_ns();
        memcpy(ring + to, pool + from, bytes);
        ns[n] = now_ns() - start;
        to = to + 2 * bytes <= ring_bytes ? to + bytes : 0;
        from = from + 2 * bytes <= pool_bytes ? from + bytes : 0;
    }
    *at = to;
}

// Two processes that wake each other in turns: words[0] counts the calls, words[1] the answers; ~0 ends it.
static void sleep_while(uint32_t *word, uint32_t seen) {
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == seen) syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

static void say(uint32_t *word, uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

void futex_pong(uint32_t *words) {
    for (uint32_t turn = 0;; turn++) {
        sleep_while(&words[0], turn);
        if (__atomic_load_n(&words[0], __ATOMIC_ACQUIRE) == UINT32_MAX) return;
        say(&words[1], turn + 1);
    }
}

// Nanoseconds of each round trip, up to `most` of them within `ns`; returns how many.
uint64_t futex_ping(uint32_t *words, uint64_t ns, uint64_t most, double *took) {
    double begin = now_ns(), before = begin;
    uint64_t turn = 0;
    for (; turn < most && before - begin < (double)ns; turn++) {
        say(&words[0], (uint32_t)turn + 1);
        sleep_while(&words[1], (uint32_t)turn);
        double after = now_ns();
        took[turn] = after - before;
        before = after;
    }
    say(&words[0], UINT32_MAX);
    return turn;
}
