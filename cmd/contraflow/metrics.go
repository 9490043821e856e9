package main

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"contraflow/stages/recipe"
)

// watcher serves a run's metrics to Prometheus. A nil one does nothing.
type watcher struct {
	server *http.Server
	addr   string
	ended  chan struct{}

	step, loss, gradNorm, lr, pairsPerS, tokensPerS, peak prometheus.Gauge
	pairs, tokens, skipped                                prometheus.Counter
	eval                                                  *prometheus.GaugeVec
}

// serveMetrics listens at an address; close ends it. Without an address there is nothing to serve.
func serveMetrics(addr string) (*watcher, error) {
	if addr == "" {
		return nil, nil
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	reg := prometheus.NewRegistry()
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "contraflow", Name: name, Help: help})
		reg.MustRegister(g)
		return g
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "contraflow", Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	w := &watcher{
		addr: listener.Addr().String(), ended: make(chan struct{}),
		step: gauge("step", "Optimizer steps made."), loss: gauge("loss", "Of the last step."), gradNorm: gauge("grad_norm", "Of the last step, before clipping."),
		lr: gauge("learning_rate", "Of the last step."), pairsPerS: gauge("pairs_per_second", "In the last step."), tokensPerS: gauge("tokens_per_second", "In the last step."),
		peak: gauge("peak_memory_bytes", "The most that the process has held, or on a GPU that it has allocated there."), pairs: counter("pairs_total", "Rows trained on, of all ranks."),
		tokens: counter("tokens_total", "Tokens trained on, of all ranks."), skipped: counter("skipped_steps_total", "Steps whose gradient was not finite."),
		eval: prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "contraflow", Name: "evaluation", Help: "The last evaluation's value."}, []string{"metric"}),
	}
	reg.MustRegister(w.eval, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	w.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(w.ended)
		w.server.Serve(listener) // until close
	}()
	return w, nil
}

// observer tells the watcher what it tells the other one.
func (w *watcher) observer(o recipe.Observer) recipe.Observer {
	if w == nil {
		return o
	}
	step, eval := o.Step, o.Eval
	o.Step = func(m recipe.Metrics) {
		w.step.Set(float64(m.Step))
		w.loss.Set(m.Loss)
		w.gradNorm.Set(m.GradNorm)
		w.lr.Set(m.LR)
		w.pairsPerS.Set(m.PairsPerS)
		w.tokensPerS.Set(m.TokensPerS)
		w.peak.Set(float64(m.PeakMemBytes))
		w.pairs.Add(float64(m.Pairs))
		w.tokens.Add(float64(m.Tokens))
		if m.Skipped {
			w.skipped.Inc()
		}
		if step != nil {
			step(m)
		}
	}
	o.Eval = func(e recipe.Evaluation) {
		w.eval.WithLabelValues(e.Metric).Set(e.Value)
		for _, t := range e.Figures() {
			w.eval.WithLabelValues(t.Key()).Set(t.Value)
		}
		if eval != nil {
			eval(e)
		}
	}
	return o
}

// close ends serving: who is being served has a second.
func (w *watcher) close() {
	if w == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if w.server.Shutdown(ctx) != nil {
		w.server.Close()
	}
	<-w.ended
}
