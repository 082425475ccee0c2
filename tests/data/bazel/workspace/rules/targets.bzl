"""A repository that says which GPU targets Bazel was told, as OpenXLA's rule for ROCm asks."""

def _gpu_targets(context):
    asked = context.getenv("TF_ROCM_AMDGPU_TARGETS", "")
    context.file("BUILD", 'exports_files(["targets.txt"])')
    context.file("targets.txt", asked + "\n")

gpu_targets = repository_rule(
    implementation = _gpu_targets,
    environ = ["TF_ROCM_AMDGPU_TARGETS"],
)
