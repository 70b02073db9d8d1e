package cuda

import "causeway/host/driver/cuda/bind"

// arrayState is what a session keeps for arrays, textures, links and green contexts. Its zero value
// is ready.
type arrayState struct {
	links   owned[*link]
	arrays  owned[array]
	mipmaps owned[mipmap]

	textures  owned[object[bind.TexObject]]
	surfaces  owned[object[bind.SurfObject]]
	texRefs   owned[reference[bind.Texref]]
	surfRefs  owned[reference[bind.Surfref]]
	greens    table[green]
	descs     table[resDesc]
	resources map[bind.DevResource]origin // those that the driver gave
	// Of them, by what the guest has: of a process before this one.
	recalled map[bind.DevResource]bind.DevResource

	tiles        map[shapedKey]*tiles // of arrays that had some mapped
	tileOrder    uint64               // of the next operation
	tileCount    int                  // tiles that are followed
	tilesNamed   uint64               // by operations that count
	tilesOfGraph bool                 // some were mapped while a stream captured
	// By the guest, and behind tiles still; each has its place as its name when the session moves.
	released []*physical
}
