# For tests alone: HiGHS as it compiles soonest. Its solutions are the same, its time to them is not.
set(CMAKE_C_FLAGS_RELEASE "-O0 -DNDEBUG" CACHE STRING "" FORCE)
set(CMAKE_CXX_FLAGS_RELEASE "-O0 -DNDEBUG" CACHE STRING "" FORCE)
set(CMAKE_UNITY_BUILD ON CACHE BOOL "" FORCE)
