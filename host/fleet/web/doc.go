// Package web is the page on which people watch a fleet, and its metrics: read-only, from package
// overview, with no state but the last overview. What it shows is made by html/template; a script
// in the browser asks for it again and puts it in place.
package web
