// Functions that the headers of a newer libstdc++ call and that of GCC 8, which the wheel is for, does not export, by
// means of what it does export. They are hidden: in a process with a newer libstdc++ nobody else finds them.
#include <new>
#include <sstream>
#include <string>

#if __cplusplus > 201703L
#error "compiled as C++17: the functions of C++20 that stand here would call themselves"
#endif

#define HIDDEN __attribute__((visibility("hidden")))

namespace std {
// GLIBCXX_3.4.29
HIDDEN void __throw_bad_array_new_length() { throw std::bad_array_new_length(); }
}  // namespace std

extern "C" {
// Constructors without arguments, GLIBCXX_3.4.26: the ones with a mode were there before.
#if _GLIBCXX_USE_CXX11_ABI
HIDDEN void new_ostringstream(void* self) __asm__("_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev");
HIDDEN void new_stringstream(void* self) __asm__("_ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev");
#else
HIDDEN void new_ostringstream(void* self) __asm__("_ZNSt19basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev");
HIDDEN void new_stringstream(void* self) __asm__("_ZNSt18basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev");
#endif
void new_ostringstream(void* self) { new (self) std::ostringstream(std::ios_base::out); }
void new_stringstream(void* self) { new (self) std::stringstream(std::ios_base::in | std::ios_base::out); }

#if _GLIBCXX_USE_CXX11_ABI
// C++20's str() of a stream that is kept and of one that is given up, GLIBCXX_3.4.29: C++17 has one for both.
HIDDEN std::string text_of(const std::stringbuf* self) __asm__(
    "_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");
HIDDEN std::string take_text(std::stringbuf* self) __asm__(
    "_ZNOSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");
std::string text_of(const std::stringbuf* self) { return self->str(); }
std::string take_text(std::stringbuf* self) {
  std::string text = self->str();
  self->str(std::string());
  return text;
}
#endif

// std::exception_ptr's counter, CXXABI_1.3.13: its constructor by copy and its destructor, which are older, count too.
void copy_exception_ptr(void* self, const void* other) __asm__("_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void drop_exception_ptr(void* self) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");
HIDDEN void add_reference(void* self) __asm__("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
HIDDEN void release_reference(void* self) __asm__("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void add_reference(void* self) {
  // The copy is not destroyed: its reference is the one that is added.
  void* copy = nullptr;
  copy_exception_ptr(&copy, self);
}
void release_reference(void* self) { drop_exception_ptr(self); }
}
