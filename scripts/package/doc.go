// Package packaging holds what makes the packages, and what keeps the documents in them whole.
package packaging
