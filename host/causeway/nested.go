//go:build nested

package main

import "os"

// outerEnv holds the CAUSEWAY of the session that this program's driver, itself a guest library, is
// to use.
const outerEnv = "CAUSEWAY_OUTER"

// nested gives the outer session to the processes that load drivers: what starts them takes
// CAUSEWAY from them. The one that runs the program, and all else, has it already.
func nested() { _ = os.Setenv("CAUSEWAY", os.Getenv(outerEnv)) }
