// Package spin has what a polling loop needs between two looks.
package spin
