/* Counts allocations of a whole process between allocation_count_start and allocation_count_stop.
 *
 * Preloaded, so that its functions stand before those of the C library, which still do the work. All threads are
 * counted: an engine's workers must not allocate either. `brk` and `mmap` count only when called by name; what
 * the C library does inside its own malloc shows up as that malloc.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

/* The C library's own functions under their second names: no search for them, so no recursion into us. */
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

enum { MALLOC, CALLOC, REALLOC, ALIGNED, FREE, MMAP, MUNMAP, BRK, KINDS };

static atomic_int counting;
static atomic_long counts[KINDS];

static void count(int kind)
{
    if (atomic_load_explicit(&counting, memory_order_relaxed))
        atomic_fetch_add_explicit(&counts[kind], 1, memory_order_relaxed);
}

void allocation_count_start(void)
{
    for (int i = 0; i < KINDS; i++)
        atomic_store(&counts[i], 0);
    atomic_store(&counting, 1);
}

void allocation_count_stop(long *result)
{
    atomic_store(&counting, 0);
    for (int i = 0; i < KINDS; i++)
        result[i] = atomic_load(&counts[i]);
}

void *malloc(size_t size)
{
    count(MALLOC);
    return __libc_malloc(size);
}

void *calloc(size_t number, size_t size)
{
    count(CALLOC);
    return __libc_calloc(number, size);
}

void *realloc(void *old, size_t size)
{
    count(REALLOC);
    return __libc_realloc(old, size);
}

void free(void *old)
{
    if (old != NULL)
        count(FREE);
    __libc_free(old);
}

void *memalign(size_t alignment, size_t size)
{
    count(ALIGNED);
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    count(ALIGNED);
    return __libc_memalign(alignment, size);
}

int posix_memalign(void **result, size_t alignment, size_t size)
{
    count(ALIGNED);
    if (alignment % sizeof(void *) != 0 || alignment == 0 || (alignment & (alignment - 1)) != 0)
        return EINVAL;
    int saved = errno;
    void *memory = __libc_memalign(alignment, size);
    errno = saved;
    if (memory == NULL)
        return ENOMEM;
    *result = memory;
    return 0;
}

void *mmap(void *address, size_t length, int protection, int flags, int file, off_t offset)
{
    count(MMAP);
    return (void *)syscall(SYS_mmap, address, length, protection, flags, file, offset);
}

void *mmap64(void *address, size_t length, int protection, int flags, int file, off_t offset)
{
    count(MMAP);
    return (void *)syscall(SYS_mmap, address, length, protection, flags, file, offset);
}

int munmap(void *address, size_t length)
{
    count(MUNMAP);
    return (int)syscall(SYS_munmap, address, length);
}

void *sbrk(intptr_t increment)
{
    static void *(*next)(intptr_t);
    count(BRK);
    if (next == NULL)
        next = (void *(*)(intptr_t))dlsym(RTLD_NEXT, "sbrk");
    return next(increment);
}
