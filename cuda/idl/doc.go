// Package idl parses the description of the protocol and of the driver API in cuda/api/*.idl.
//
// A file is lines. '#' starts a comment (outside quotes). A line that begins in column 0 opens a
// declaration; indented lines are its body. Declarations:
//
//	const NAME TYPE VALUE
//	struct NAME [message]                 body: FIELD TYPE[COUNT]; no implicit padding. message: Go gets a codec
//	op NAME sync|async|wait ATTRIBUTE ... body: in|out FIELD TYPE [KIND]
//	enum NAME go PREFIX strip PREFIX      body: NAME VALUE
//	type NAME "DECLARATION"
//	results                               body: CODE NAME "text"
//	theme NAME "title" [refuse "reason"]  entries that follow belong to it
//	entry NAME MODE ...                   see Entry
//
// The attributes of an operation say what it is: cuda/api/ops.idl explains them. What nobody may
// guess an operation has to say. Parsing has no state besides the file being read; errors name file
// and line.
package idl
