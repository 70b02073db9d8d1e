// Command causeway-compat runs programs that people really use, each natively and under `causeway
// run`, and compares what they print. The programs lie beside this folder and describe themselves
// in lines that begin with "#:" or "//:".
//
//	#: title: what the row shows          #: part: 1..6, the group in the table
//	#: row: NAME ARG...                   one row each; without any the row is named after the file
//	#: compare: exact | numbers REL | status
//	#: gap: [NAME:] reason                why the row cannot work; shown, and not counted as a failure
//	#: note: [NAME:] text                 shown beside a row that works
//	#: alone: yes | NAME...               nothing else may run meanwhile
//	#: fresh: yes                         --reuse-native runs it natively all the same: it shows what one machine has
//	#: gpus: 2 | all    #: timeout: SECONDS    #: env: K=V
//	//: libs: cublas ...                  for .cu: link against these;  //: flags: for nvcc
//
// One goroutine collects; --jobs others run rows. A result belongs to its row alone, so there are
// no locks but the printer's.
package main
