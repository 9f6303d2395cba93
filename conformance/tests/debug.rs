//! temporary
use std::sync::Arc;
use ir::{Backend, Op};
use sched::Folding;
use sim::Simulator;
use trainyard_conformance::{alone, clusters, swarm::Case};
#[test]
fn debug() {
    let seed: u64 = std::env::var("S").unwrap().parse().unwrap();
    let case = Case::spread(seed, 48);
    println!("{:?}\n{:#?}", case.plan, case.cluster);
    let cost = clusters::priced(case.cluster.clone());
    let lanes = |f| {
        let program = case.program(f);
        let mut s = Simulator::new(clusters::priced(case.cluster.clone()));
        s.load(Arc::clone(&program)).unwrap();
        (program, s.iterate(0).unwrap().timeline)
    };
    let (fp, ft) = lanes(Folding::Folded);
    let (p, t) = lanes(Folding::Flat);
    for (i, role) in fp.roles.iter().enumerate() {
        println!("role{i} {:?}", role.ranks);
        let a = &ft.lanes[i];
        for rank in role.ranks.iter() {
            let b = &t.lanes[rank.index()];
            for (x, y) in a.spans.iter().zip(&b.spans) {
                if x != y {
                    let op = p.roles[rank.index()].instruction(x.instruction).op;
                    let al = match op { Op::Send{..}|Op::Receive{..}|Op::Collective{..} => alone::transfer(&p, &p.roles[rank.index()], op, &cost), _ => 0 };
                    let members = match op { Op::Collective{group,..} => format!("{:?}", p.groups[group.index()].instance_of(rank).unwrap().iter().map(|r| (r.raw(), p.device(r).raw(), cost.cluster().place(p.device(r)).node.raw(), cost.cluster().nic_of(cost.cluster().place(p.device(r))))).collect::<Vec<_>>()), _ => String::new() };
                    println!("  rank {rank}: folded {}..{} flat {}..{} alone {al} {op:?} {members}", x.start.nanoseconds(), x.end.nanoseconds(), y.start.nanoseconds(), y.end.nanoseconds());
                    break;
                }
            }
        }
    }
    let mem = |r: ir::Rank, g: ir::GroupId| fp.groups[g.index()].instance_of(r).unwrap().iter().map(|r| (r.raw(), fp.device(r).raw(), cost.cluster().place(fp.device(r)).node.raw(), cost.cluster().nic_of(cost.cluster().place(fp.device(r))))).collect::<Vec<_>>();
    for (g, grp) in fp.groups.iter().enumerate() {
        println!("group {g} {:?} {:?} first {:?}", grp.axis, grp.shifts, mem(ir::Rank::new(grp.members.first().raw()), ir::GroupId::at(g)));
    }
}
