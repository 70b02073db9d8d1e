package exec

import "math"

// texture finds a lane's texture object; a value that is none is a fault.
func (w *warp) texture(o *op, lane uint8) *Texture {
	if find := w.blk.launch.config.Textures; find != nil {
		if t := find.Texture(w.r[o.a][lane&31]); t != nil && len(t.Levels) > 0 {
			return t
		}
	}
	w.fault(Trap, "no such texture object")
	return nil
}

func (w *warp) surface(o *op, lane uint8) *Image {
	if find := w.blk.launch.config.Textures; find != nil {
		if m := find.Surface(w.r[o.a][lane&31]); m != nil {
			return m
		}
	}
	w.fault(Trap, "no such surface object")
	return nil
}

// position reads a lane's coordinates.
func (i *imageOp) position(w *warp, lane uint8) (pos [3]float32, layer uint32) {
	list := i.coords
	if i.layered {
		layer = uint32(w.r[list[0]][lane&31])
		list = list[1:]
	}
	for d := range i.dims {
		v := w.r[list[d]][lane&31]
		if i.integer {
			pos[d] = float32(int32(v))
		} else {
			pos[d] = f32(v)
		}
	}
	return pos, layer
}

func (i *imageOp) vectorOf(w *warp, list []int32, lane uint8) (v [3]float32) {
	for d := range i.dims {
		v[d] = f32(w.r[list[d]][lane&31])
	}
	return v
}

// give writes the channels of a texel to the destinations.
func (i *imageOp) give(w *warp, lane uint8, v texel) {
	if i.half {
		for k := range 2 {
			if len(i.values) > k && i.values[k] >= 0 {
				lo, hi := math.Float32frombits(v[2*k]), math.Float32frombits(v[2*k+1])
				w.r[i.values[k]][lane&31] = uint64(toHalf(float64(lo))) | uint64(toHalf(float64(hi)))<<16
			}
		}
		return
	}
	for k, d := range i.values {
		if d >= 0 {
			w.r[d][lane&31] = uint64(v[k])
		}
	}
}

func opTex(w *warp, o *op) {
	i := o.x.image
	for _, l := range w.act {
		t := w.texture(o, l)
		m := &t.Levels[0]
		pos, layer := i.position(w, l)
		at := int(min(layer, uint32(m.Depth-1)))
		switch {
		case i.integer && i.level < 0:
			i.give(w, l, t.element(w, i, l, at))
		case i.dx != nil:
			i.give(w, l, t.sampleLevel(pos, i.dims, at, t.levelOf(i.vectorOf(w, i.dx, l), i.vectorOf(w, i.dy, l), i.dims)))
		case i.level >= 0 && i.integer:
			i.give(w, l, t.sampleLevel(pos, i.dims, at, float32(int32(w.r[i.level][l&31]))))
		case i.level >= 0:
			i.give(w, l, t.sampleLevel(pos, i.dims, at, f32(w.r[i.level][l&31])))
		default:
			i.give(w, l, t.sampleLevel(pos, i.dims, at, 0))
		}
	}
}

// element reads the element at a lane's integer coordinates, unfiltered.
func (t *Texture) element(w *warp, i *imageOp, lane uint8, layer int) texel {
	list := i.coords
	if i.layered {
		list = list[1:]
	}
	at := [3]int{2: layer}
	for d := range i.dims {
		at[d] = int(int32(w.r[list[d]][lane&31]))
	}
	plain := *t
	plain.Normalized = false
	return plain.fetch(&t.Levels[0], at[0], at[1], at[2])
}

func opTld4(w *warp, o *op) {
	i := o.x.image
	for _, l := range w.act {
		t := w.texture(o, l)
		pos, layer := i.position(w, l)
		i.give(w, l, t.gather(pos, int(min(layer, uint32(t.Levels[0].Depth-1))), i.part))
	}
}

func (m *Image) answer(query string) uint64 {
	switch query {
	case "width":
		return uint64(m.Width)
	case "height":
		return uint64(m.Height)
	}
	return uint64(m.Depth) // depth, array_size
}

func opTxq(w *warp, o *op) {
	for _, l := range w.act {
		t := w.texture(o, l)
		v := t.Levels[0].answer(o.x.image.query)
		switch o.x.image.query {
		case "num_mipmap_levels":
			v = uint64(len(t.Levels))
		case "normalized_coords":
			v = uint64(btoi(t.Normalized))
		}
		w.r[o.d][l&31] = v
	}
}

func opSuq(w *warp, o *op) {
	for _, l := range w.act {
		w.r[o.d][l&31] = w.surface(o, l).answer(o.x.image.query)
	}
}

// spot finds the bytes that a surface access names: x in bytes, y, z or layer.
// nil: beside the surface, in a mode that then reads zeros and stores nothing.
func (i *imageOp) spot(w *warp, o *op, lane uint8) []byte {
	m := w.surface(o, lane)
	list := i.coords
	var at [3]int
	if i.layered {
		at[2] = int(int32(w.r[list[0]][lane&31]))
		list = list[1:]
	}
	for d := range i.dims {
		at[d] = int(int32(w.r[list[d]][lane&31]))
	}
	size := i.unit * len(i.values)
	row := m.Width * m.Channels * m.Format.Size()
	if size > row {
		w.fault(Trap, "surface access is wider than the surface")
	}
	if at[0]%size != 0 {
		w.fault(MisalignedAddress, "surface access is not aligned")
	}
	limit := [3]int{row - size + 1, m.Height, m.Depth}
	for d := range at {
		if at[d] >= 0 && at[d] < limit[d] {
			continue
		}
		switch i.beyond {
		case "clamp":
			at[d] = min(max(at[d], 0), limit[d]-1)
		case "zero":
			return nil
		default:
			w.fault(Trap, "surface access beside the surface")
		}
	}
	from := at[2]*m.Slice + at[1]*m.Row + at[0]
	return m.Mem[from : from+size]
}

func opSuld(w *warp, o *op) {
	i := o.x.image
	for _, l := range w.act {
		b := i.spot(w, o, l)
		for k, d := range i.values {
			if d < 0 {
				continue
			}
			var v uint64
			if b != nil {
				v = getBytes(b[k*i.unit : (k+1)*i.unit])
			}
			w.r[d][l&31] = v
		}
	}
}

func opSust(w *warp, o *op) {
	i := o.x.image
	for _, l := range w.act {
		b := i.spot(w, o, l)
		if b == nil {
			continue
		}
		for k, s := range i.values {
			putBytes(b[k*i.unit:(k+1)*i.unit], w.r[s][l&31])
		}
	}
}
