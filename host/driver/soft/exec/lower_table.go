package exec

// lowering translates the instruction l.in.
type lowering func(l *lowerer) error

// lowerings is the one list of instructions that exec knows, apart from those
// that end a block (cfg.go, terminator). Anything else fails the launch of the
// kernels that contain it, by name.
var lowerings = map[string]lowering{
	// data movement: lower_move.go
	"mov": lowerMov, "cvta": lowerCvta, "isspacep": lowerIsspacep, "selp": lowerSelp, "slct": lowerSlct,
	"prmt": lowerPrmt, "activemask": lowerActivemask,

	// memory: lower_mem.go, lower_atom.go
	"ld": lowerLd, "ldu": lowerLd, "st": lowerSt, "atom": lowerAtom, "red": lowerAtom, "cp": lowerCp,
	"membar": lowerFence, "fence": lowerFence, "prefetch": lowerNothing, "prefetchu": lowerNothing,
	"discard": lowerNothing, "applypriority": lowerNothing, "createpolicy": lowerPolicy,

	// integers: lower_int.go
	"add": lowerAdd, "sub": lowerAdd, "mul": lowerMul, "mad": lowerMul, "mul24": lowerMul24, "mad24": lowerMul24,
	"div": lowerDiv, "rem": lowerRem, "abs": lowerUnary, "neg": lowerUnary, "min": lowerMinMax, "max": lowerMinMax,
	"sad": lowerSad, "addc": lowerCarry, "subc": lowerCarry, "madc": lowerCarry,
	"dp4a": lowerDot, "dp2a": lowerDot,

	// bits: lower_bits.go
	"and": lowerLogic, "or": lowerLogic, "xor": lowerLogic, "not": lowerNot, "cnot": lowerCnot, "shl": lowerShift,
	"shr": lowerShift, "shf": lowerShf, "lop3": lowerLop3, "bfe": lowerBfe, "bfi": lowerBfi, "bfind": lowerBfind,
	"brev": lowerBits1, "clz": lowerBits1, "popc": lowerBits1, "fns": lowerFns, "bmsk": lowerBmsk, "szext": lowerSzext,

	// packed bytes and halfwords: lower_video.go
	"vadd2": lowerVideo, "vadd4": lowerVideo, "vsub2": lowerVideo, "vsub4": lowerVideo, "vavrg2": lowerVideo, "vavrg4": lowerVideo, "vabsdiff2": lowerVideo, "vabsdiff4": lowerVideo, "vmin2": lowerVideo, "vmin4": lowerVideo, "vmax2": lowerVideo, "vmax4": lowerVideo, "vset2": lowerVideo, "vset4": lowerVideo,

	// floating point: lower_float.go
	"fma": lowerFma, "rcp": lowerFloat1, "sqrt": lowerFloat1, "rsqrt": lowerFloat1, "sin": lowerFloat1, "cos": lowerFloat1,
	"lg2": lowerFloat1, "ex2": lowerFloat1, "tanh": lowerFloat1, "testp": lowerTestp, "copysign": lowerCopysign,

	// comparison and conversion: lower_cmp.go, lower_cvt.go
	"setp": lowerSetp, "set": lowerSet, "cvt": lowerCvt,

	// textures and surfaces: lower_tex.go
	"tex": lowerTex, "tld4": lowerTex, "txq": lowerTxq, "suq": lowerTxq, "suld": lowerSuld, "sust": lowerSust,

	// across lanes: lower_warp.go
	"shfl": lowerShfl, "vote": lowerVote, "match": lowerMatch, "redux": lowerRedux, "elect": lowerElect,

	// matrices: lower_mma.go
	"mma": lowerMma, "wmma": lowerWmma, "ldmatrix": lowerMatrix, "stmatrix": lowerMatrix, "movmatrix": lowerMovmatrix,

	"mapa": lowerMapa, "getctarank": lowerGetctarank, // cluster.go

	"mbarrier": lowerMbarrier, // lower_mbarrier.go

	// control: lower_misc.go
	"trap": lowerTrap, "brkpt": lowerTrap, "nanosleep": lowerNanosleep, "pmevent": lowerNothing,
	"setmaxnreg": lowerNothing, "griddepcontrol": lowerNothing,
}
