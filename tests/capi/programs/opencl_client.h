/* As much of OpenCL as a client needs that makes buffers, fills them by a kernel and maps them. For C and for C++.
 *
 * The library is loaded by its path: nothing is linked, and no header of the system's is needed. */
#ifndef OPENCL_CLIENT_H
#define OPENCL_CLIENT_H

#include <stdint.h>

#include "qnn_client.h"

typedef struct _cl_platform_id *cl_platform_id;
typedef struct _cl_device_id *cl_device_id;
typedef struct _cl_context *cl_context;
typedef struct _cl_command_queue *cl_command_queue;
typedef struct _cl_mem *cl_mem;
typedef struct _cl_program *cl_program;
typedef struct _cl_kernel *cl_kernel;
typedef struct _cl_event *cl_event;
typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_bitfield;

enum {
  CL_SUCCESS = 0,
  CL_TRUE = 1,
  CL_MAP_READ = 1 << 0,
  CL_MEM_READ_WRITE = 1 << 0,
  CL_MEM_USE_HOST_PTR = 1 << 3,
  CL_CONTEXT_PLATFORM = 0x1084,
  CL_MEM_REFERENCE_COUNT = 0x1105
};
static const cl_bitfield CL_DEVICE_TYPE_ALL = 0xFFFFFFFF;

static struct {
  cl_int (*GetPlatformIDs)(cl_uint, cl_platform_id *, cl_uint *);
  cl_int (*GetDeviceIDs)(cl_platform_id, cl_bitfield, cl_uint, cl_device_id *, cl_uint *);
  cl_context (*CreateContext)(const intptr_t *, cl_uint, const cl_device_id *, void (*)(void), void *, cl_int *);
  cl_int (*ReleaseContext)(cl_context);
  cl_command_queue (*CreateCommandQueue)(cl_context, cl_device_id, cl_bitfield, cl_int *);
  cl_int (*ReleaseCommandQueue)(cl_command_queue);
  cl_mem (*CreateBuffer)(cl_context, cl_bitfield, size_t, void *, cl_int *);
  cl_int (*ReleaseMemObject)(cl_mem);
  cl_int (*GetMemObjectInfo)(cl_mem, cl_uint, size_t, void *, size_t *);
  cl_program (*CreateProgramWithSource)(cl_context, cl_uint, const char **, const size_t *, cl_int *);
  cl_int (*BuildProgram)(cl_program, cl_uint, const cl_device_id *, const char *, void (*)(void), void *);
  cl_int (*ReleaseProgram)(cl_program);
  cl_kernel (*CreateKernel)(cl_program, const char *, cl_int *);
  cl_int (*SetKernelArg)(cl_kernel, cl_uint, size_t, const void *);
  cl_int (*ReleaseKernel)(cl_kernel);
  cl_int (*EnqueueNDRangeKernel)(cl_command_queue, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *,
                                 cl_uint, const cl_event *, cl_event *);
  void *(*EnqueueMapBuffer)(cl_command_queue, cl_mem, cl_uint, cl_bitfield, size_t, size_t, cl_uint, const cl_event *,
                            cl_event *, cl_int *);
  cl_int (*EnqueueUnmapMemObject)(cl_command_queue, cl_mem, void *, cl_uint, const cl_event *, cl_event *);
  cl_int (*Finish)(cl_command_queue);
} cl;

static inline void load_opencl(const char *path) {
  static const char *const names[] = {
      "clGetPlatformIDs", "clGetDeviceIDs", "clCreateContext", "clReleaseContext", "clCreateCommandQueue",
      "clReleaseCommandQueue", "clCreateBuffer", "clReleaseMemObject", "clGetMemObjectInfo",
      "clCreateProgramWithSource", "clBuildProgram", "clReleaseProgram", "clCreateKernel", "clSetKernelArg",
      "clReleaseKernel", "clEnqueueNDRangeKernel", "clEnqueueMapBuffer", "clEnqueueUnmapMemObject", "clFinish"};
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), **places = (void **)&cl;
  if (!library) fprintf(stderr, "%s\n", dlerror());
  REQUIRE(library && sizeof cl == sizeof names);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) REQUIRE((places[i] = dlsym(library, names[i])));
}

#endif
