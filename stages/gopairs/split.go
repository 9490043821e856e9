package gopairs

import (
	"fmt"
	"math/rand/v2"
)

// Split divides pairs into a part to train on and a held-out part of heldOut pairs, by package: no package has pairs in
// both. The same pairs and seed give the same split, and both parts keep the order of pairs.
//
// Packages come in an order drawn from the seed, and each is held out if it has no more pairs than are still missing: the
// held-out part has exactly heldOut pairs when there are small packages enough, and never more. Packages larger than a
// twentieth of it wait until the smaller ones are through: in the Go sources one package (runtime) has a tenth of all
// pairs, and held-out figures would depend on whether the seed drew it. It is an error when the held-out part stays
// below nine tenths of heldOut.
func Split(pairs []Pair, seed uint64, heldOut int) (train, test []Pair, err error) {
	if heldOut < 1 || heldOut >= len(pairs) {
		return nil, nil, fmt.Errorf("can't hold out %d of %d pairs: hold out 1 or more, and leave some to train on", heldOut, len(pairs))
	}
	var packages []string // by first appearance
	sizes := map[string]int{}
	for _, p := range pairs {
		if sizes[p.Package] == 0 {
			packages = append(packages, p.Package)
		}
		sizes[p.Package]++
	}
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(packages), func(i, j int) { packages[i], packages[j] = packages[j], packages[i] })
	held, missing := map[string]bool{}, heldOut
	for _, largest := range []int{heldOut / 20, heldOut} {
		for _, name := range packages {
			if size := sizes[name]; !held[name] && size <= largest && size <= missing {
				held[name] = true
				missing -= size
			}
		}
	}
	if missing*10 > heldOut {
		return nil, nil, fmt.Errorf("can't hold out %d of %d pairs by package: whole packages make %d of them (there are %d packages): hold out another number, or give more code with --source",
			heldOut, len(pairs), heldOut-missing, len(packages))
	}
	for _, p := range pairs {
		if held[p.Package] {
			test = append(test, p)
		} else {
			train = append(train, p)
		}
	}
	return train, test, nil
}
