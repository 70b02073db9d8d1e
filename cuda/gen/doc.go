// Command gen writes everything derived from cuda/api/*.idl; cuda/doc.go lists what.
//
// Each output is one function from the description to a file's content, listed in outputs. Output
// depends on nothing but the description, so that regenerating changes nothing.
package main
