package cudatest

/*
#include <stdint.h>
#include <string.h>

// A driver whose kernels need local memory, and which counts what is made and given back. What a kernel of ours needs is another number than what all others do.
static struct { int needs, ours, launch, instantiate; uint64_t limit; int counts[6]; } lo;
enum { LOAD, UNLOAD, MADE, ENDED, LAUNCHED, GRAPHS };

static int lo_attribute(int *value, int which) { *value = which == 3 ? lo.needs : 0; return 0; }
static int lo_ours(int *value, int which) { *value = which == 3 ? lo.ours : 0; return 0; }
static int lo_limit(uint64_t *value) { *value = lo.limit; return 0; }
static int lo_launch(void) { lo.counts[LAUNCHED]++; return lo.launch; }
static int lo_instantiate(uint64_t *x)
{
	static uint64_t last = 1 << 20;
	if (lo.instantiate) return lo.instantiate;
	*x = last += 4096;
	lo.counts[MADE]++;
	return 0;
}
static int lo_exec_destroy(void) { lo.counts[ENDED]++; return 0; }
static int lo_load(uint64_t *m) { *m = 1 << 12; lo.counts[LOAD]++; return 0; }
static int lo_unload(void) { lo.counts[UNLOAD]++; return 0; }
static int lo_graph(uint64_t *g) { *g = 1 << 13; lo.counts[GRAPHS]++; return 0; }
static int lo_graph_destroy(void) { lo.counts[GRAPHS]--; return 0; }
static uint64_t lo_entry(int which)
{
	void *all[] = {lo_attribute, lo_ours, lo_limit, lo_launch, lo_launch, lo_launch, lo_launch, lo_instantiate, lo_exec_destroy, lo_load, lo_unload, lo_graph, lo_graph_destroy};
	return (uint64_t)(uintptr_t)all[which];
}
static void lo_begin(void) { memset(&lo, 0, sizeof lo); lo.limit = 1024; }
static void lo_set(int needs, int ours, int launch, int instantiate) { lo.needs = needs, lo.ours = ours, lo.launch = launch, lo.instantiate = instantiate; }
static int lo_count(int which) { return lo.counts[which]; }
*/
import "C"

// Locals are the entries of a driver whose kernels need local memory, by their names. It begins
// anew; one test at a time.
func Locals() map[string]uint64 {
	C.lo_begin()
	all := map[string]uint64{}
	for i, name := range []string{"cuKernelGetAttribute", "cuFuncGetAttribute", "cuCtxGetLimit", "cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch",
		"cuGraphInstantiateWithFlags", "cuGraphExecDestroy", "cuModuleLoadDataEx", "cuModuleUnload", "cuGraphCreate", "cuGraphDestroy"} {
		all[name] = uint64(C.lo_entry(C.int(i)))
	}
	return all
}

// SetLocals is how many bytes each thread of the kernels that are looked up from now on needs, and
// of functions of modules; and how launches end, and making graphs executable.
func SetLocals(kernel, function, launch, instantiate int) {
	C.lo_set(C.int(kernel), C.int(function), C.int(launch), C.int(instantiate))
}

// LocalsMade says how many modules were loaded and unloaded, graphs were made executable and given
// back, kernels and graphs were launched, and how many graphs there are.
func LocalsMade() (loaded, unloaded, made, ended, launched, graphs int) {
	n := func(i C.int) int { return int(C.lo_count(i)) }
	return n(0), n(1), n(2), n(3), n(4), n(5)
}
