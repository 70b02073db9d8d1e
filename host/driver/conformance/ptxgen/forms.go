package ptxgen

import "strings"

// Forms of instructions. After the opcode come operands: lower case the destination, upper case
// sources, by type: r b32, d b64, f f32, e f64, h b16, p predicate; t a scratch b32 register;
// "#lo-hi" an immediate number; anything else stands as it is. {a,b} are alternatives; ";"
// separates instructions that only mean something together.
var forms = []string{
	// integers
	"{add,sub}.{u32,s32} r R R", "{add,sub}.{u64,s64} d D D", "{add,sub}.{u16,s16} h H H", "{add,sub}.sat.s32 r R R",
	"add.{u16x2,s16x2} r R R", "mul.{lo,hi}.{u32,s32} r R R", "mul.{lo,hi}.{u64,s64} d D D", "mul.{lo,hi}.{u16,s16} h H H",
	"mul.wide.{u32,s32} d R R", "mul.wide.{u16,s16} r H H", "mad.{lo,hi}.{u32,s32} r R R R", "mad.hi.sat.s32 r R R R",
	"mad.{lo,hi}.{u64,s64} d D D D", "mad.lo.{u16,s16} h H H H", "mad.wide.{u32,s32} d R R D", "mad.wide.{u16,s16} r H H R",
	"mul24.{lo,hi}.{u32,s32} r R R", "mad24.{lo,hi}.{u32,s32} r R R R", "sad.{u32,s32} r R R R", "sad.{u16,s16} h H H H",
	"sad.{u64,s64} d D D D", "{div,rem}.{u32,s32} r R R", "{div,rem}.{u64,s64} d D D", "{div,rem}.{u16,s16} h H H",
	"{abs,neg}.s32 r R", "{abs,neg}.s64 d D", "{abs,neg}.s16 h H", "{min,max}.{u32,s32} r R R", "{min,max}.{u64,s64} d D D",
	"{min,max}.{u16,s16} h H H", "{min,max}.{u16x2,s16x2} r R R", "{min,max}.relu.{s32,s16x2} r R R",
	"dp4a.{u32,s32}.{u32,s32} r R R R", "dp2a.{lo,hi}.{u32,s32}.{u32,s32} r R R R",
	"add.cc.u32 t R R;addc.u32 r R R", "sub.cc.u32 t R R;subc.u32 r R R", "mad.lo.cc.u32 t R R R;madc.hi.u32 r R R R",
	"mad.hi.cc.s32 t R R R;addc.s32 r R R", "add.cc.u32 t R R;addc.cc.u32 t R R;addc.u32 r R 0",

	// bits
	"{and,or,xor}.b32 r R R", "{and,or,xor}.b64 d D D", "{and,or,xor}.b16 h H H", "{and,or,xor}.pred p P P", "not.b32 r R", "not.b64 d D",
	"not.b16 h H", "not.pred p P", "cnot.b32 r R", "cnot.b64 d D", "cnot.b16 h H", "lop3.b32 r R R R #0-255", "shl.b32 r R R", "shl.b64 d D R",
	"shl.b16 h H R", "shr.{u32,s32,b32} r R R", "shr.{u64,s64} d D R", "shr.{u16,s16} h H R", "shl.b32 r R #0-40",
	"shf.{l,r}.{wrap,clamp}.b32 r R R R", "prmt.b32 r R R R", "prmt.b32.{f4e,b4e,rc8,ecl,ecr,rc16} r R R R",
	"bfe.{u32,s32} r R R R", "bfe.{u64,s64} d D R R", "bfe.{u32,s32} r R #0-31 #0-32", "bfe.{u64,s64} d D #0-63 #0-64", "bfi.b32 r R R R R",
	"bfi.b64 d D D R R", "bfi.b32 r R R #0-31 #0-32", "bfind.{u32,s32} r R", "bfind.{u64,s64} r D", "bfind.shiftamt.{u32,s32} r R",
	"bfind.shiftamt.{u64,s64} r D", "popc.b32 r R", "popc.b64 r D", "clz.b32 r R", "clz.b64 r D", "brev.b32 r R", "brev.b64 d D",
	"fns.b32 r R #0-31 #-5-5", "szext.{wrap,clamp}.{u32,s32} r R R", "bmsk.{wrap,clamp}.b32 r R R",

	// packed bytes and halfwords
	"{vadd4,vsub4,vavrg4,vabsdiff4,vmin4,vmax4}.{u32,s32}.{u32,s32}.{u32,s32} r R R R",
	"{vadd2,vsub2,vavrg2,vabsdiff2,vmin2,vmax2}.{u32,s32}.{u32,s32}.{u32,s32} r R R R", "vset4.{u32,s32}.{u32,s32}.{eq,ne,lt,le,gt,ge} r R R R",

	// selection and comparison
	"selp.b32 r R R P", "selp.b64 d D D P", "selp.b16 h H H P", "selp.f32 f F F P", "selp.f64 e E E P", "slct.b32.s32 r R R R",
	"slct.b64.s32 d D D R", "slct.f32.{f32,ftz.f32} f F F F", "slct.f64.f32 e E E F",
	"setp.{eq,ne,lt,le,gt,ge}.{u32,s32} p R R", "setp.{lo,ls,hi,hs}.u32 p R R", "setp.{eq,ne,lt,le,gt,ge}.{u64,s64} p D D",
	"setp.{eq,ne,lt,le,gt,ge}.{u16,s16} p H H", "setp.{lt,gt}.{and,or,xor}.s32 p R R P",
	"setp.{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}.{f32,ftz.f32} p F F",
	"setp.{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}.f64 p E E", "setp.{eq,lt,ge,neu,nan}.{f16,ftz.f16,bf16} p H H",
	"set.{eq,lt,ge}.{u32,s32}.{u32,s32} r R R", "set.{eq,lt,ge,nan}.u32.{f32,ftz.f32} r F F", "set.{lt,gtu}.f32.f32 f F F",
	"set.{lt,ge}.f32.s32 f R R", "set.{eq,ltu}.u32.f64 r E E", "set.{lt,ge}.f16x2.f16x2 r R R", "set.{lt,ge}.bf16x2.bf16x2 r R R",

	// single precision
	"{add,sub,mul}.{rn,rz,rm,rp}.{f32,ftz.f32,sat.f32,ftz.sat.f32} f F F", "fma.{rn,rz,rm,rp}.{f32,ftz.f32,sat.f32} f F F F",
	"div.{rn,rz,rm,rp}.{f32,ftz.f32} f F F", "{rcp,sqrt}.{rn,rz,rm,rp}.{f32,ftz.f32} f F", "{min,max}.{f32,ftz.f32,NaN.f32,ftz.NaN.f32} f F F",
	"{min,max}.{xorsign.abs,NaN.xorsign.abs}.f32 f F F", "{abs,neg}.{f32,ftz.f32} f F", "copysign.f32 f F F",
	"testp.{finite,infinite,number,notanumber,normal,subnormal}.f32 p F", "testp.{finite,infinite,number,notanumber,normal,subnormal}.f64 p E",

	// double precision
	"{add,sub,mul}.{rn,rz,rm,rp}.f64 e E E", "fma.{rn,rz,rm,rp}.f64 e E E E", "div.{rn,rz,rm,rp}.f64 e E E", "{rcp,sqrt}.{rn,rz,rm,rp}.f64 e E",
	"{min,max}.f64 e E E", "{abs,neg}.f64 e E", "copysign.f64 e E E",

	// half precision
	"{add,sub,mul}.{f16,rn.f16,ftz.f16,sat.f16} h H H", "{add,sub,mul}.{rn.f16x2,ftz.f16x2,sat.f16x2} r R R", "{add,sub,mul}.{bf16,rn.bf16} h H H",
	"{add,sub,mul}.rn.bf16x2 r R R", "fma.rn.{f16,ftz.f16,sat.f16,relu.f16,ftz.relu.f16,bf16,relu.bf16} h H H H",
	"fma.rn.{f16x2,ftz.f16x2,sat.f16x2,relu.f16x2,bf16x2,relu.bf16x2} r R R R", "{min,max}.{f16,ftz.f16,NaN.f16,xorsign.abs.f16,bf16,NaN.bf16} h H H",
	"{min,max}.{f16x2,NaN.f16x2,bf16x2,NaN.xorsign.abs.bf16x2} r R R", "{abs,neg}.{f16,ftz.f16,bf16} h H", "{abs,neg}.{f16x2,bf16x2} r R",

	// conversions
	"cvt.{u32,s32}.{u8,s8} r R", "cvt.{u8,s8}.{u32,s32} r R", "cvt.sat.{u8,s8}.{u32,s32} r R", "cvt.{u16,s16}.{u32,s32} h R", "cvt.sat.{u16,s16}.{u32,s32} h R",
	"cvt.{u32,s32}.{u16,s16} r H", "cvt.{u64,s64}.{u32,s32} d R", "cvt.{u32,s32}.{u64,s64} r D", "cvt.sat.{u32,s32}.{u64,s64} r D",
	"cvt.sat.{u32.s32,s32.u32} r R", "cvt.sat.{u64.s64,s64.u64} d D", "cvt.{rn,rz,rm,rp}.f32.{u32,s32} f R", "cvt.{rn,rz,rm,rp}.f32.{u64,s64} f D",
	"cvt.{rn,rz}.f32.{u16,s16} f H", "cvt.{rn,rz}.f32.{u8,s8} f R", "cvt.{rn,rz,rm,rp}.f64.{u32,s32} e R", "cvt.{rn,rz,rm,rp}.f64.{u64,s64} e D",
	"cvt.rn.f16.{u32,s32} h R", "cvt.rn.f16.{u16,s16} h H", "cvt.rn.f16.{u64,s64} h D",
	"cvt.{rni,rzi,rmi,rpi}.{u32,s32,ftz.u32,ftz.s32}.f32 r F", "cvt.{rni,rzi,rmi,rpi}.{u64,s64}.f32 d F", "cvt.{rni,rzi}.{u16,s16}.f32 h F",
	"cvt.{rni,rzi}.{u8,s8}.f32 r F", "cvt.{rni,rzi,rmi,rpi}.{u32,s32}.f64 r E", "cvt.{rni,rzi,rmi,rpi}.{u64,s64}.f64 d E", "cvt.rzi.{u16,s16}.f64 h E",
	"cvt.{rni,rzi,rmi,rpi}.{u32,s32}.f16 r H", "cvt.{rni,rzi}.{u16,s16}.f16 h H", "cvt.{rni,rzi}.{u64,s64}.f16 d H",
	"cvt.{rn,rz,rm,rp}.{f32,ftz.f32,sat.f32}.f64 f E", "cvt.{f64,sat.f64}.f32 e F", "cvt.ftz.f64.f32 e F", "cvt.{rni,rzi,rmi,rpi}.{f32,ftz.f32,sat.f32}.f32 f F",
	"cvt.{rni,rzi,rmi,rpi}.f64.f64 e E", "cvt.sat.f32.f32 f F", "cvt.{rni,rzi,rmi,rpi}.f16.f16 h H", "cvt.{rn,rz}.f16.f32 h F", "cvt.{rn,rz}.f16.f64 h E",
	"cvt.rn.{ftz,relu,sat}.f16.f32 h F", "cvt.{f32,ftz.f32}.f16 f H", "cvt.f64.f16 e H", "cvt.{rn,rz,rn.relu,rz.relu}.bf16.f32 h F", "cvt.f32.bf16 f H",
	"cvt.{rn,rz,rn.relu,rz.relu}.{f16x2,bf16x2}.f32 r F F", "cvt.{rna,rn,rz}.tf32.f32 r F", "cvt.rn.satfinite.{e4m3x2,e5m2x2}.f32 h F F",
	"cvt.rn.satfinite.relu.{e4m3x2,e5m2x2}.f32 h F F", "cvt.rn.satfinite.{e4m3x2,e5m2x2}.f16x2 h R", "cvt.rn.{f16x2,relu.f16x2}.{e4m3x2,e5m2x2} r H",

	// across the warp
	"shfl.sync.{up,down,bfly,idx}.b32 r R R R 0xffffffff", "shfl.sync.{up,down,bfly,idx}.b32 r R #0-31 #0-31 0xffffffff", "vote.sync.{all,any,uni}.pred p P 0xffffffff",
	"vote.sync.ballot.b32 r P 0xffffffff", "match.any.sync.b32 r R 0xffffffff", "match.any.sync.b64 r D 0xffffffff", "redux.sync.{add,min,max}.{u32,s32} r R 0xffffffff",
	"redux.sync.{and,or,xor}.b32 r R 0xffffffff",
}

// expand resolves {a,b}: "x{a,b}y" is "xay" and "xby".
func expand(form string) []string {
	open := strings.IndexByte(form, '{')
	if open < 0 {
		return []string{form}
	}
	end := open + strings.IndexByte(form[open:], '}')
	var out []string
	for _, alternative := range strings.Split(form[open+1:end], ",") {
		out = append(out, expand(form[:open]+alternative+form[end+1:])...)
	}
	return out
}

// Forms lists every instruction that programs may contain, one entry for each way to write its
// modifiers.
func Forms() []string {
	var out []string
	for _, f := range forms {
		out = append(out, expand(f)...)
	}
	return out
}
