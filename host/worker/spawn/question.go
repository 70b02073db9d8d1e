package spawn

import "context"

// question is what a worker is asked by one caller at a time.
type question[T any] struct {
	asking chan struct{} // held by who asks
	answer chan T
}

func newQuestion[T any]() question[T] {
	return question[T]{asking: make(chan struct{}, 1), answer: make(chan T, 1)}
}

// begin waits until nobody else asks; end lets the next one ask. ErrSilent.
func (q *question[T]) begin(ctx context.Context) (end func(), err error) {
	select {
	case q.asking <- struct{}{}:
		return func() { <-q.asking }, nil
	case <-ctx.Done():
		return nil, ErrSilent
	}
}

// await returns the answer.
func (q *question[T]) await(ctx context.Context, p *Process) (T, error) {
	return await(ctx, p, q.answer)
}

// await returns what a worker answers, unless its last word has come or ctx ends before it.
func await[T any](ctx context.Context, p *Process, answers <-chan T) (answer T, err error) {
	select {
	case answer = <-answers:
		return answer, nil
	case <-p.drained:
		select { // it was its last word
		case answer = <-answers:
			return answer, nil
		default:
			return answer, ErrEnded
		}
	case <-ctx.Done():
		return answer, ErrSilent
	}
}
