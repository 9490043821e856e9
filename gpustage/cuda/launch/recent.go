package launch

import "container/list"

// Recent keeps what was made for the keys that were asked for last, at most so many: what is dropped is what nobody has asked for the
// longest.
type Recent[K comparable, V any] struct {
	most  int
	drop  func(V)
	order list.List // of *entry, the last asked for in front
	at    map[K]*list.Element
}

type entry[K comparable, V any] struct {
	key  K
	made V
}

// NewRecent keeps at most so many; drop gets the others, and in the end all.
func NewRecent[K comparable, V any](most int, drop func(V)) *Recent[K, V] {
	return &Recent[K, V]{most: most, drop: drop, at: map[K]*list.Element{}}
}

// Get is what there is for a key, or what build makes now.
func (r *Recent[K, V]) Get(key K, build func() (V, error)) (V, error) {
	if e, ok := r.at[key]; ok {
		r.order.MoveToFront(e)
		return e.Value.(*entry[K, V]).made, nil
	}
	made, err := build()
	if err != nil {
		return made, err
	}
	r.at[key] = r.order.PushFront(&entry[K, V]{key, made})
	for r.order.Len() > r.most {
		r.dropLast()
	}
	return made, nil
}

func (r *Recent[K, V]) dropLast() {
	e := r.order.Remove(r.order.Back()).(*entry[K, V])
	delete(r.at, e.key)
	r.drop(e.made)
}

// Clear drops all.
func (r *Recent[K, V]) Clear() {
	for r.order.Len() > 0 {
		r.dropLast()
	}
}
