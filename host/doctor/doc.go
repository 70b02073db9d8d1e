// Package doctor checks whether a host can give vGPUs to VMs, and says what to do where it cannot.
//
// A check looks at one thing through a Machine and gives one Result; it changes nothing, loads no
// driver into this process, and connects to no vhost-user socket, which takes one VM only. Checks
// run beside each other and keep no state. To add one, write a function and put it in the table of
// checks.go; doctor_test.go has a table of machines for it.
package doctor
