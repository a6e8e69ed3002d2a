// In the place of glibc's: libstdc++'s headers ask for this one since glibc 2.32, and the wheel is for 2.28, which cannot say
// whether a process has one thread only. Counters of shared pointers are then always atomic.
#pragma once
static constexpr bool __libc_single_threaded = false;
