//! Matrix products by cuBLAS.

#![expect(unsafe_code, reason = "cuBLAS is a C interface")]

use std::ffi::c_void;

use cudarc::cublas::{result, sys};
use cudarc::driver::sys::{CUdeviceptr, CUstream};

use crate::device::{DeviceError, Element, Product};

/// Scratch memory of a handle: what cuBLAS recommends for Hopper. Given by us, so that products on one stream are the same
/// in every run and no call allocates.
pub(super) const WORKSPACE_BYTES: usize = 32 << 20;

/// Arguments of a product for cuBLAS, whose matrices are column-major: row-major `c = a b` is column-major `c^T = b^T a^T`,
/// so the operands change places and their transposes stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Call {
    transpose_first: bool,
    transpose_second: bool,
    rows: i32,
    columns: i32,
    inner: i32,
    first_leading: i32,
    second_leading: i32,
    out_leading: i32,
}

impl Call {
    fn new(product: &Product) -> Self {
        let Product { m, n, k, transpose_a, transpose_b, .. } = *product;
        let size = |value: usize| i32::try_from(value).expect("a side of a matrix that cuBLAS holds in an int");
        Self {
            transpose_first: transpose_b,
            transpose_second: transpose_a,
            rows: size(n),
            columns: size(m),
            inner: size(k),
            first_leading: size(if transpose_b { k } else { n }.max(1)),
            second_leading: size(if transpose_a { m } else { k }.max(1)),
            out_leading: size(n.max(1)),
        }
    }
}

/// A handle of cuBLAS, bound to a stream.
#[derive(Debug)]
pub(super) struct Blas(sys::cublasHandle_t);

fn error(doing: &str, error: result::CublasError) -> DeviceError {
    DeviceError::new(doing, format!("cuBLAS says {:?}", error.0))
}

fn operation(transpose: bool) -> sys::cublasOperation_t {
    if transpose { sys::cublasOperation_t::CUBLAS_OP_T } else { sys::cublasOperation_t::CUBLAS_OP_N }
}

fn kind(element: Element) -> sys::cudaDataType {
    match element {
        Element::F32 => sys::cudaDataType::CUDA_R_32F,
        Element::Bf16 => sys::cudaDataType::CUDA_R_16BF,
        Element::U32 | Element::F64 => unreachable!("products are of FP32 or BF16"),
    }
}

impl Blas {
    /// A handle whose work goes to `stream`, with scratch memory of [`WORKSPACE_BYTES`] at `workspace`.
    pub(super) fn new(stream: CUstream, workspace: CUdeviceptr) -> Result<Self, DeviceError> {
        let doing = "opening cuBLAS";
        let blas = Self(result::create_handle().map_err(|e| error(doing, e))?);
        // SAFETY: the handle is new; the stream lives as long as the device that owns this handle. The order matters:
        // setting a stream takes the workspace away.
        unsafe {
            result::set_stream(blas.0, stream.cast()).map_err(|e| error(doing, e))?;
            sys::cublasSetWorkspace_v2(blas.0, address(workspace), WORKSPACE_BYTES)
                .result()
                .map_err(|e| error(doing, e))?;
        }
        Ok(blas)
    }

    /// Puts a product on the handle's stream.
    pub(super) fn product(
        &self,
        product: &Product,
        a: CUdeviceptr,
        b: CUdeviceptr,
        c: CUdeviceptr,
    ) -> Result<(), DeviceError> {
        let call = Call::new(product);
        let element = kind(product.a.element);
        // SAFETY: the addresses are of buffers of the sizes that `Product::assert_sound` has checked, and alpha and beta
        // are read before the call returns.
        unsafe {
            result::gemm_ex(
                self.0,
                operation(call.transpose_first),
                operation(call.transpose_second),
                call.rows,
                call.columns,
                call.inner,
                (&raw const product.alpha).cast(),
                address(b),
                element,
                call.first_leading,
                address(a),
                element,
                call.second_leading,
                (&raw const product.beta).cast(),
                address(c),
                kind(product.c.element),
                call.out_leading,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .map_err(|e| error(&format!("a product of {} x {} x {}", product.m, product.k, product.n), e))
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: created by create_handle and destroyed once. An error here has nobody to hear it.
        let _ = unsafe { result::destroy_handle(self.0) };
    }
}

fn address(pointer: CUdeviceptr) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(usize::try_from(pointer).expect("addresses have 64 bits"))
}
