// Package bind is the only way from a session to the NVIDIA driver. Its methods, types and structs
// are generated from cuda/api/*.idl and cuda/gen/abi_structs.h; what is written by hand here is
// what makes a number into something that a method takes.
//
// A number from a guest is nothing that the driver gets. It becomes
//
//   - a handle (Stream, Event, Array ...) by being looked up in a table of what the driver gave before,
//   - Mem, addresses that the GPU reaches for this guest, by Space.Mem, which asks the pinned regions, the driver and the graphs' allocations,
//   - Host, memory of this process, by Mapped, which cuts it out of a mapping that the guest shared, or Buffer, which is C memory of ours,
//   - Rect, Operand and Memcpy3D, by functions that compute how far rows and slices reach, without wrapping, and hold that against the above,
//   - Arguments, a kernel's parameters, by Layout.Arguments, which holds them against what the kernel reads,
//   - Image and Input, code for the driver, by functions that want it checked (cuda/fatbin),
//   - Attributes, by Space.LaunchAttributes, which knows what may be in them.
//
// All of these have fields that no other package writes, and none converts to another. Address and
// HostAddress are what is left of Mem and Host for calls that take no size. A struct of parameters
// with such addresses is sealed (cuda/api/bind.idl) if the driver takes a length from elsewhere in
// it.
//
// An entry that is not bound yet, or takes a parameter otherwise, gets a line in bind.idl; a struct
// its layout in abi_structs.h; then go generate ./cuda.
//
// Methods may be called on any thread, whose current context the driver uses. A Space and a Queue's
// filling side belong to the worker goroutine.
package bind
