/* The memory of a Python that a library starts while valgrind or a sanitizer checks the program.
 *
 * That Python ends with the process, and its blocks would be reported as leaks of the client. So they are taken from
 * mappings, which these tools do not count. Memory that is reachable from there, an array's elements for example, is no
 * leak either: valgrind searches mappings by itself, and LeakSanitizer gets a list of them (register_root). */
#ifndef ISTHMUS_PYTHON_MEMORY_H
#define ISTHMUS_PYTHON_MEMORY_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

/* As Python declares them. */
typedef struct {
  void *context;
  void *(*malloc)(void *, size_t);
  void *(*calloc)(void *, size_t, size_t);
  void *(*realloc)(void *, void *, size_t);
  void (*free)(void *, void *);
} PyMemAllocatorEx;
typedef struct {
  void *context;
  void *(*alloc)(void *, size_t);
  void (*free)(void *, void *, size_t);
} PyObjectArenaAllocator;

/* -- mappings ------------------------------------------------------------------------------------------------------ */

static void (*register_root)(const void *, size_t), (*unregister_root)(const void *, size_t);

/* Map memory; NULL on failure. `context` is an argument of Python's allocators that is not used. */
static void *mapping(void *context, size_t bytes) {
  (void)context;
  void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return NULL;
  if (register_root) register_root(made, bytes);
  return made;
}

/* Unmap such memory. */
static void unmapping(void *context, void *memory, size_t bytes) {
  (void)context;
  if (unregister_root) unregister_root(memory, bytes);
  munmap(memory, bytes);
}

/* -- blocks -------------------------------------------------------------------------------------------------------- */

/* An allocator. A block with its header has a power of two as its size. Blocks are cut from chunks, and freed ones are
 * kept in a list for each size. Blocks above MAX_BLOCK are mappings of their own. */
typedef struct Block { size_t bytes; struct Block *next; } Block;
enum { MIN_BLOCK = 64, MAX_BLOCK = 1 << 18, CHUNK = 1 << 20, PAGE = 4096 };
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;
static Block *freed[8 * sizeof(size_t)];
static char *chunk;
static size_t chunk_left;

/* Take a block from the list of its size, or from a chunk, holding the lock; NULL on failure. */
static Block *taken(size_t bytes) {
  Block **list = &freed[__builtin_ctzl(bytes)], *block = *list;
  if (block) {
    *list = block->next;
    return block;
  }
  if (chunk_left < bytes) {
    if (!(chunk = mapping(NULL, CHUNK))) return NULL;
    chunk_left = CHUNK;
  }
  block = (Block *)(chunk + CHUNK - chunk_left);
  chunk_left -= bytes;
  return block;
}

static void *block_malloc(void *context, size_t wanted) {
  Block *block;
  size_t bytes = MIN_BLOCK;
  if (wanted > PTRDIFF_MAX - PAGE) return NULL;
  while (bytes < wanted + sizeof *block && bytes <= MAX_BLOCK) bytes *= 2;
  if (bytes > MAX_BLOCK) {
    bytes = (wanted + sizeof *block + PAGE - 1) & ~(size_t)(PAGE - 1);
    block = mapping(context, bytes);
  } else {
    pthread_mutex_lock(&blocks_lock);
    block = taken(bytes);
    pthread_mutex_unlock(&blocks_lock);
  }
  if (!block) return NULL;
  block->bytes = bytes;
  return block + 1;
}

static void block_free(void *context, void *memory) {
  Block *block = (Block *)memory - 1;
  if (!memory) return;
  if (block->bytes > MAX_BLOCK) {
    unmapping(context, block, block->bytes);
    return;
  }
  pthread_mutex_lock(&blocks_lock);
  Block **list = &freed[__builtin_ctzl(block->bytes)];
  block->next = *list;
  *list = block;
  pthread_mutex_unlock(&blocks_lock);
}

static void *block_calloc(void *context, size_t count, size_t each) {
  size_t bytes;
  void *memory = __builtin_mul_overflow(count, each, &bytes) ? NULL : block_malloc(context, bytes);
  return memory ? memset(memory, 0, bytes) : NULL;
}

static void *block_realloc(void *context, void *memory, size_t wanted) {
  size_t room = memory ? ((Block *)memory - 1)->bytes - sizeof(Block) : 0;
  if (memory && wanted <= room) return memory;
  void *larger = block_malloc(context, wanted);
  if (!larger) return NULL;
  if (memory) memcpy(larger, memory, room);
  block_free(context, memory);
  return larger;
}

/* -- Python -------------------------------------------------------------------------------------------------------- */

/* Return whether valgrind runs this process: it preloads a library with this function. */
static int on_valgrind(void) { return dlsym(RTLD_DEFAULT, "_vgnU_freeres") != NULL; }

/* Make Python take its memory from mappings, if valgrind or LeakSanitizer runs. `python` is where its functions are
 * found. To be called between Py_PreInitialize and Py_InitializeFromConfig, as Python requires. */
static void separate_python_memory(void *python) {
  void (*set_allocator)(int, PyMemAllocatorEx *) = NULL;
  void (*set_arenas)(PyObjectArenaAllocator *) = NULL;
  *(void **)&register_root = dlsym(RTLD_DEFAULT, "__lsan_register_root_region");
  *(void **)&unregister_root = dlsym(RTLD_DEFAULT, "__lsan_unregister_root_region");
  if (!register_root && !on_valgrind()) return;
  *(void **)&set_allocator = dlsym(python, "PyMem_SetAllocator");
  *(void **)&set_arenas = dlsym(python, "PyObject_SetArenaAllocator");
  if (!set_allocator || !set_arenas) return;
  PyMemAllocatorEx blocks = {NULL, block_malloc, block_calloc, block_realloc, block_free};
  PyObjectArenaAllocator arenas = {NULL, mapping, unmapping};
  set_allocator(0 /* PYMEM_DOMAIN_RAW: all but small objects, which are in arenas */, &blocks);
  set_arenas(&arenas);
}

#endif
