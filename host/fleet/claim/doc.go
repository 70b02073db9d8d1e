// Package claim reads what a ResourceClaim has of this driver: the devices that the scheduler
// chose, the amounts that were counted for them, and the parameters of whoever wrote the claim or
// its class. All of it is others' text. Read checks it once, and only Read makes a Claim.
package claim
