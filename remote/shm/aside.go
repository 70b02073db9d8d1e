package shm

// Aside maps size bytes of a file, where regions lie for which a guest has chosen no addresses.
// unmap ends it.
func Aside(fd int, size uintptr) (mem []byte, unmap func(), err error) {
	s, err := reserve(0, size)
	if err != nil {
		return nil, nil, err
	}
	if err := s.fill(0, size, fd, 0); err != nil {
		s.release()
		return nil, nil, err
	}
	return s.bytes(), s.release, nil
}
