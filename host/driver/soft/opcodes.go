package soft

import (
	"fmt"
	"strings"

	"causeway/host/driver/soft/ptx"
)

// opcodes are the instructions of PTX ISA 9.0 (section 9.7). Of these exec may lack some, which
// shows when such a kernel is launched; any other word is a fault in the source.
const opcodes = ` abs activemask add addc alloca and applypriority atom bar barrier bfe bfi bfind bmsk bra brev brkpt brx call
 clusterlaunchcontrol clz cnot copysign cos cp createpolicy cvt cvta discard div dp2a dp4a elect ex2 exit fence fma fns
 getctarank griddepcontrol isspacep istypep ld ldmatrix ldu lg2 lop3 mad mad24 madc mapa match max mbarrier membar min mma
 mov movmatrix mul mul24 multimem nanosleep neg not or pmevent popc prefetch prefetchu prmt rcp red redux rem ret rsqrt sad
 selp set setmaxnreg setp shf shfl shl shr sin slct sqrt st stackrestore stacksave stmatrix sub subc suld suq sured sust
 szext tanh tcgen05 tensormap testp tex tld4 trap txq vabsdiff vabsdiff2 vabsdiff4 vadd vadd2 vadd4 vavrg2 vavrg4 vmad vmax
 vmax2 vmax4 vmin vmin2 vmin4 vote vset vset2 vset4 vshl vshr vsub vsub2 vsub4 wgmma wmma xor `

var opcodeSet = func() map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(opcodes) {
		set[w] = true
	}
	return set
}()

// checkOpcodes finds the first instruction that does not exist.
func checkOpcodes(m *ptx.Module) error {
	for _, f := range m.Funcs {
		for i := range f.Body {
			if in := &f.Body[i]; !opcodeSet[in.Op] {
				return &ptx.Error{Line: in.Line, Msg: fmt.Sprintf("Not a name of any known instruction: '%s'", in.Op)}
			}
		}
	}
	return nil
}
