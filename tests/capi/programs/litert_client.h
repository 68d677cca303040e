/* TFLite's C++ interpreter as the package ai-edge-litert carries it, for a program in C++ that has no other.
 *
 * That library exports neither TFLite's C API nor its C++ classes: it is made for Python. It keeps their names in its
 * symbol table, though, so they are found there and called as a compiler would call them. It needs Python's functions
 * to be in the process, and none of them is called here. */
#ifndef LITERT_CLIENT_H
#define LITERT_CLIENT_H

#include <elf.h>
#include <link.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "qnn_client.h"

struct TfLiteDelegate;
struct TfLiteCustomAllocation { void *data; size_t bytes; };
enum TfLiteStatus { kTfLiteOk = 0, kTfLiteError = 1, kTfLiteDelegateError = 2 };

namespace litert {

class Library {
 public:
  Library(const char *libpython, const char *path) {
    REQUIRE(dlopen(libpython, RTLD_NOW | RTLD_GLOBAL));
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) fprintf(stderr, "%s\n", dlerror());
    struct link_map *map = nullptr;
    REQUIRE(handle && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0);
    base_ = map->l_addr;
    std::ifstream file(path, std::ios::binary);
    content_.assign(std::istreambuf_iterator<char>(file), {});
    REQUIRE(content_.size() > sizeof(Elf64_Ehdr));
  }

  template <typename Function>
  Function find(const char *name) const {
    const auto *header = reinterpret_cast<const Elf64_Ehdr *>(content_.data());
    const auto *sections = reinterpret_cast<const Elf64_Shdr *>(content_.data() + header->e_shoff);
    for (int i = 0; i < header->e_shnum; i++) {
      if (sections[i].sh_type != SHT_SYMTAB) continue;
      const char *names = content_.data() + sections[sections[i].sh_link].sh_offset;
      const auto *symbols = reinterpret_cast<const Elf64_Sym *>(content_.data() + sections[i].sh_offset);
      for (size_t j = 0; j < sections[i].sh_size / sizeof *symbols; j++)
        if (symbols[j].st_value && !strcmp(names + symbols[j].st_name, name))
          return reinterpret_cast<Function>(base_ + symbols[j].st_value);
    }
    fprintf(stderr, "the library does not tell where %s is\n", name);
    exit(1);
  }

 private:
  uintptr_t base_ = 0;
  std::vector<char> content_;
};

/* Objects whose size no header tells: enough room, and what their constructors make of it. */
class Room {
 public:
  void *get() { return words_; }

 private:
  alignas(64) unsigned char words_[4096] = {};
};

/* tflite::Interpreter, as far as the listing uses it. Its kernels are the reference ones, with no default delegate. */
class Interpreter {
 public:
  Interpreter(const Library &library, const char *model) : library_(library) {
    auto build_from_file = library.find<void (*)(void **, const char *, void *)>(
        "_ZN6tflite4impl19FlatBufferModelBaseINS0_15FlatBufferModelEE13BuildFromFileEPKcPNS_13ErrorReporterE");
    auto reporter = library.find<void *(*)()>("_ZN6tflite20DefaultErrorReporterEv");
    auto make_resolver = library.find<void (*)(void *)>("_ZN6tflite3ops7builtin20BuiltinRefOpResolverC1Ev");
    auto make_builder = library.find<void (*)(void *, const void *, const void *, const void *)>(
        "_ZN6tflite4impl18InterpreterBuilderC1ERKNS0_15FlatBufferModelERKNS_10OpResolverEPKNS_18InterpreterOptionsE");
    auto build = library.find<int (*)(void *, void **)>(
        "_ZN6tflite4impl18InterpreterBuilderclEPSt10unique_ptrINS0_11InterpreterESt14default_deleteIS3_EE");
    auto end_builder = library.find<void (*)(void *)>("_ZN6tflite4impl18InterpreterBuilderD1Ev");
    build_from_file(&model_, model, reporter());
    REQUIRE(model_);
    make_resolver(resolver_.get());
    Room builder;
    make_builder(builder.get(), model_, resolver_.get(), nullptr);
    REQUIRE(build(builder.get(), &interpreter_) == kTfLiteOk && interpreter_);
    end_builder(builder.get());
  }
  Interpreter(const Interpreter &) = delete;
  Interpreter &operator=(const Interpreter &) = delete;
  ~Interpreter() {
    library_.find<void (*)(void *)>("_ZN6tflite4impl11InterpreterD1Ev")(interpreter_);
    operator delete(interpreter_);
    library_.find<void (*)(void **)>(
        "_ZNSt10unique_ptrIN6tflite4impl15FlatBufferModelESt14default_deleteIS2_EED2Ev")(&model_);
  }

  TfLiteStatus SetCustomAllocationForTensor(int tensor_index, const TfLiteCustomAllocation &allocation) {
    auto set = library_.find<int (*)(void *, int, const TfLiteCustomAllocation *, int64_t)>(
        "_ZN6tflite4impl11Interpreter28SetCustomAllocationForTensorEiRK22TfLiteCustomAllocationl");
    return static_cast<TfLiteStatus>(set(interpreter_, tensor_index, &allocation, 0));
  }
  TfLiteStatus AllocateTensors() { return call("_ZN6tflite4impl11Interpreter15AllocateTensorsEv"); }
  TfLiteStatus Invoke() { return call("_ZN6tflite4impl11Interpreter6InvokeEv"); }
  TfLiteStatus ModifyGraphWithDelegate(TfLiteDelegate *delegate) {
    auto modify = library_.find<int (*)(void *, TfLiteDelegate *)>(
        "_ZN6tflite4impl11Interpreter23ModifyGraphWithDelegateEP14TfLiteDelegate");
    return static_cast<TfLiteStatus>(modify(interpreter_, delegate));
  }

 private:
  TfLiteStatus call(const char *name) {
    return static_cast<TfLiteStatus>(library_.find<int (*)(void *)>(name)(interpreter_));
  }

  const Library &library_;
  Room resolver_;
  void *model_ = nullptr, *interpreter_ = nullptr;
};

}  // namespace litert

#endif
